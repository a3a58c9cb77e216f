"""``python -m training.upload STAGE_DIR``: whole checkpoints go into the store and its second region beside training.

A process of its own, at low priority: however slow a store is, no step waits for it. The first process of a job starts
it, tells it of each checkpoint by a line, and reads one JSON line of every try. Where it lags, the newest checkpoint
goes first and older periodic ones are left out. It dies with the job; what it was killed in is whole or absent.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training import manifest
from training.config import CHECKPOINTS, ConfigError, StoreOrders, read_config
from training.manifest import Manifest
from training.store import (
    Absent,
    Damaged,
    Series,
    StoreError,
    StoreSettings,
    Unreachable,
    keep,
    open_replica,
    open_series,
    put,
    replicate,
)

_AGAIN_SECONDS = 30.0  # between two tries of a store that failed, where no new checkpoint comes sooner
_PR_SET_PDEATHSIG = 1


@dataclass
class Upload:
    """One stage's checkpoints on their way to its series; the series' only writer while the job runs."""

    checkpoints: Path
    orders: StoreOrders
    series: Series
    replica: Series | None
    done: dict[int, str] = field(default_factory=dict)  # digest by step, as this process stored it

    @classmethod
    def of(cls, stage_dir: Path, orders: StoreOrders) -> Upload:
        """Open the places that the orders name; nothing is asked of them yet."""
        settings = StoreSettings.from_json(orders.settings)
        here, there = open_series(settings, orders.series), open_replica(settings, orders.series)
        return cls(stage_dir / CHECKPOINTS, orders, here, there)

    def due(self) -> list[Manifest]:
        """Return what is whole and not stored: the newest, and whichever a later stage may rely on."""
        whole = manifest.whole(self.checkpoints)
        return [
            found
            for found in reversed(whole)
            if self.done.get(found.step) != found.digest and (found is whole[-1] or found.purpose != "periodic")
        ]

    def upload(self, found: Manifest) -> dict[str, Any]:
        """Store one checkpoint, prune, copy to the second region; return what to tell of it. Errors are told too."""
        began = time.monotonic()
        said: dict[str, Any] = {"step": found.step, "written": found.time, "new_bytes": 0, "problems": []}
        kept = []
        for place in self._first_choice(said, found):
            kept.append(place.address)
            self.done[found.step] = found.digest
        if self.replica is not None and self.series.address in kept:
            self._copied(self.replica, said)
        return said | {"stored_in": kept, "seconds": time.monotonic() - began}

    def _first_choice(self, said: dict[str, Any], found: Manifest) -> Iterator[Series]:
        """Yield the first place that took the checkpoint: the store, else the second region where we write it."""
        ours = self.replica if self.series.settings.replicated_by == "us" else None
        for place in filter(None, (self.series, ours)):
            try:
                forget(place, self.orders)
                said["new_bytes"] = put(place, found.folder, replace=True).new_bytes
                keep.prune(place, place.settings.keep)
            except (StoreError, OSError) as error:  # OSError: the trainer pruned it while it was read
                said["problems"].append(f"{place.address}: {error}")
                if not isinstance(error, Unreachable):
                    return
            else:
                yield place
                return

    def _copied(self, replica: Series, said: dict[str, Any]) -> None:
        try:
            if self.series.settings.replicated_by == "us":
                forget(replica, self.orders)
                replicate.copy_newest(self.series, replica)
            point = replicate.recovery_point(replica)
            if point is not None:
                said["replica"] = {"step": point.step, "written": time.time() - point.age_seconds}
        except StoreError as error:
            said["problems"].append(f"{replica.address}: {error}")


def forget(series: Series, orders: StoreOrders) -> None:
    """Put what was set aside of the stage out of readers' sight in a store too: nobody goes on from it."""
    if not orders.set_aside:
        return
    for found in series.pointers():
        if not isinstance(found, Damaged) and orders.is_set_aside(found.step, found.time):
            try:
                keep.quarantine(series, found.step, [Damaged("its stage was set back to before this step")])
            except Absent:
                continue


def main(arguments: list[str]) -> int:
    """Upload until the line of orders ends, then what is still due; return the exit code."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(10)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a whole group is asked to save; the trainer ends us
    stage_dir = Path(arguments[0])
    try:
        orders = read_config(stage_dir).store
        if orders is None:
            raise ConfigError(f"{stage_dir}/config.json names no store")
        upload = Upload.of(stage_dir, orders)
    except (ConfigError, StoreError) as error:
        print(f"training: {error}", file=sys.stderr)
        return 2
    told, over = threading.Event(), threading.Event()
    threading.Thread(target=_listen, args=(told, over), daemon=True).start()
    told.set()  # what an earlier attempt left
    while True:
        told.wait(_AGAIN_SECONDS)
        last = over.is_set()
        told.clear()
        for found in upload.due():
            print(json.dumps(upload.upload(found)), flush=True)
        if last:
            return 0


def _listen(told: threading.Event, over: threading.Event) -> None:
    for _ in sys.stdin:
        told.set()
    over.set()
    told.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
