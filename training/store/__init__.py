"""Checkpoints at rest in a folder or a bucket: whole or absent, verified, pruned, pinned, copied. No torch.

A series is what one stage keeps::

    <experiment>/<run>/<stage>/chunks/5f/5f31...      bytes, named by their SHA-256
    <experiment>/<run>/<stage>/manifests/<sum>.json   which chunks make which file
    <experiment>/<run>/<stage>/checkpoints/step_00000070.json   the pointer: with it a checkpoint is there
    <experiment>/<run>/<stage>/quarantine/            pointers to damaged ones, with reasons
    promoted/<experiment>/<run>/<stage>/step_00000070.json      what no pruner may touch, and why
"""

from training.store import keep, replicate
from training.store.errors import Absent, Damaged, StoreError, Taken, Unreachable
from training.store.nearest import Found, PassedOver, newest_whole
from training.store.read import fetch, problems
from training.store.series import Series, open_replica, open_series
from training.store.settings import Place, StoreSettings
from training.store.write import Written, put

__all__ = [
    "Absent", "Damaged", "Found", "PassedOver", "Place", "Series", "StoreError", "StoreSettings", "Taken",
    "Unreachable", "Written", "fetch", "keep", "newest_whole", "open_replica", "open_series", "problems", "put",
    "replicate",
]  # fmt: skip
