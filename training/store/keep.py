"""What stays in a store and what goes: pins, pruning, sweeping, quarantine.

A pin is one object under ``promoted/``; it names the stored manifest, so what it needs stays even where the pointer
goes. Order makes promotion and pruning safe without a lock. Pruning removes the pointer first and reads the pins
after that; promotion writes the pin first and looks for the pointer after that. Whichever comes second sees the other.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from typing import Any

from training import manifest
from training.store import pointer
from training.store.errors import Absent, Damaged
from training.store.pointer import Pointer, StoredManifest
from training.store.series import Series

PROMOTED = "promoted"
UNFINISHED_SECONDS = 24 * 3600.0  # half-written pieces and unreferred chunks older than this have no writer any more


def pin(series: Series, found: Pointer, record: Mapping[str, Any]) -> str:
    """Protect a checkpoint from pruning by a record in the store's ``promoted/``; return the record's key.

    Raises Absent where the checkpoint was pruned just now: then it is to be stored again.
    """
    key = pin_key(series, found.step)
    data = json.dumps({**record, "stored_manifest": found.stored_manifest, "series": series.name}, sort_keys=True)
    series.objects.put(key, data.encode() + b"\n")
    if series.pointer(found.step) != found:
        raise Absent(f"{series.address}: step {found.step} was replaced while it was pinned")
    return key


def unpin(series: Series, step: int) -> None:
    """Take the protection away; not an error where there is none."""
    series.objects.delete([pin_key(series, step)])


def pinned(series: Series, step: int) -> dict[str, Any] | None:
    """Return the record that protects a step, or None."""
    key = pin_key(series, step)
    try:
        data = series.objects.get(key)
    except Absent:
        return None
    try:
        record = json.loads(data)
        if not isinstance(record, dict):
            raise ValueError(f"a {type(record).__name__}, no object")
    except ValueError as error:
        raise Damaged(f"{series.objects.address}/{key} is no record of a promotion: {error}", (key,)) from error
    return record


def pin_key(series: Series, step: int) -> str:
    """Return the key of a step's pin."""
    return f"{PROMOTED}/{series.name}/{manifest.folder_name(step)}.json"


def pinned_steps(series: Series) -> set[int]:
    """Return the steps that are protected."""
    keys = series.objects.listed(f"{PROMOTED}/{series.name}/")
    return {step for step in map(pointer.step_of, keys) if step is not None}


def prune(series: Series, keep: int) -> list[int]:
    """Remove the oldest periodic checkpoints beyond ``keep`` and the chunks that only they needed; return their steps.

    A hand-over, a final, a forensic and a pinned one always stay; so does one that cannot be read.
    """
    protected = pinned_steps(series)
    periodic = [
        found
        for found in series.pointers()
        if isinstance(found, Pointer) and found.purpose == "periodic" and found.step not in protected
    ]
    removed = {found.step: found for found in periodic[: max(0, len(periodic) - keep)]}
    if removed:
        series.objects.delete([pointer.pointer_key(series.name, step) for step in removed])
        for step in pinned_steps(series) & removed.keys():  # pinned since we looked
            series.objects.put(pointer.pointer_key(series.name, step), removed.pop(step).to_bytes())
        sweep(series)
    return sorted(removed)


def sweep(series: Series, unreferred_seconds: float = 0.0) -> int:
    """Remove manifests and chunks that nothing needs; return how many objects went.

    For the series' one writer, between two of its checkpoints. ``unreferred_seconds`` spares what is younger. Does
    nothing where something cannot be read, since then nobody knows what it needs.
    """
    try:
        needed_manifests, needed_chunks = _needed(series)
    except (Damaged, Absent):
        return 0
    now, gone = time.time(), []
    for key, entry in series.objects.listed(f"{series.name}/manifests/").items():
        if key.rpartition("/")[2].removesuffix(".json") not in needed_manifests:
            gone += [key] if now - entry.modified >= unreferred_seconds else []
    for key, entry in series.objects.listed(f"{series.name}/chunks/").items():
        if key.rpartition("/")[2] not in needed_chunks:
            gone += [key] if now - entry.modified >= unreferred_seconds else []
    series.objects.delete(gone)
    return len(gone) + series.objects.clear_unfinished(f"{series.name}/", UNFINISHED_SECONDS)


def quarantine(series: Series, step: int, damage: list[Damaged]) -> str:
    """Make a damaged checkpoint invisible, with the reason written down; return that record's key.

    What was stored under a name that is not its sum is removed, so that the next checkpoint is not built on it.
    """
    key = pointer.pointer_key(series.name, step)
    record = {
        "step": step,
        "reasons": [str(one) for one in damage],
        "time": time.time(),
        "host": platform.node(),
        "pointer": series.objects.get(key).decode(errors="replace"),
    }
    place = f"{series.name}/quarantine/{manifest.folder_name(step)}.{int(time.time())}.json"
    series.objects.put(place, json.dumps(record, indent=1, sort_keys=True).encode() + b"\n")
    series.objects.delete([key])
    series.objects.delete({bad for one in damage for bad in one.objects if f"{series.name}/chunks/" in bad})
    return place


def quarantined(series: Series) -> dict[int, list[str]]:
    """Return the reasons by step of all checkpoints that were put aside, the last ones of each step."""
    found = {}
    for key in sorted(series.objects.listed(f"{series.name}/quarantine/")):
        record = json.loads(series.objects.get(key))
        found[int(record["step"])] = [str(reason) for reason in record["reasons"]]
    return found


def _needed(series: Series) -> tuple[set[str], set[str]]:
    """Return the names of stored manifests and chunks that a pointer, a pin, or a delta's base still needs."""
    # Pins last: one that was written before its pointer went is seen here, see the module's head.
    digests = [_or_raise(found).stored_manifest for found in series.pointers()]
    for step in pinned_steps(series):
        record = pinned(series, step)
        if record is not None:
            digests.append(str(record["stored_manifest"]))
    manifests: dict[str, StoredManifest] = {}
    for digest in digests:
        if digest not in manifests:
            manifests[digest] = series.manifest_by_digest(digest)
    bases = {stored.base for stored in manifests.values() if stored.base is not None}
    return {*manifests, *bases}, {chunk.object for stored in manifests.values() for chunk in stored.chunks}


def _or_raise(found: Pointer | Damaged) -> Pointer:
    if isinstance(found, Damaged):
        raise found
    return found
