"""A second region: the copy that is left when the first one is lost.

Either we copy each whole checkpoint, or the bucket's own rules do; then they are read and compared with what they must
say. How far the copy has come is never taken from either: it is what a reader over there would find whole.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from training.store import chunks, keep, pointer
from training.store.errors import Absent, Damaged, StoreError
from training.store.pointer import Pointer
from training.store.read import missing
from training.store.series import Series
from training.store.write import commit

if TYPE_CHECKING:
    from training.store.s3 import S3Objects


@dataclass(frozen=True)
class RecoveryPoint:
    """The newest checkpoint that is complete in the second region."""

    step: int
    age_seconds: float  # since the trainer wrote it: the work that losing the first region now would cost


def copy(source: Series, target: Series, step: int) -> int:
    """Copy one checkpoint, chunks first and its pointer last; return the bytes that were not there yet.

    Each chunk is checked against its name on the way, so damage is not copied. Killed at any moment and called again,
    it goes on. Raises Absent, Damaged, Unreachable.
    """
    found = source.pointer(step)
    stored = source.stored_manifest(found)
    there = target.stored_chunks()
    unique = {chunk.object: chunk.stored for chunk in stored.chunks}
    wanted = [name for name, size in unique.items() if there.get(name) != size]
    with source.pool() as pool:
        waiting: list[Future[int]] = [pool.submit(_copy_chunk, source, target, name) for name in wanted]
        try:
            sent = sum(one.result() for one in waiting)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if stored.base is not None:  # what later deltas over there would be built on, had the first region to be left
        base = source.manifest_by_digest(stored.base)
        target.objects.put(pointer.manifest_key(target.name, stored.base), base.to_bytes())
    commit(target, stored)
    _copy_pin(source, target, step)
    return sent


def copy_newest(source: Series, target: Series) -> list[int]:
    """Copy what the second region lacks and needs: the newest checkpoint, and every one that no pruner removes.

    Older periodic ones are passed over: where the copying lags, the newest state is worth more. Then the copy is
    pruned as the source was. Returns the steps that were copied.
    """
    here = [found for found in source.pointers() if isinstance(found, Pointer)]
    known = {found.step: found for found in target.pointers() if isinstance(found, Pointer)}
    lacking = [
        found
        for found in reversed(here)
        if known.get(found.step) != found and (found is here[-1] or found.purpose != "periodic")
    ]
    copied = []
    for found in lacking:
        try:
            copy(source, target, found.step)
        except (Absent, Damaged):  # pruned meanwhile, or for a verification to find; an older one is still to come
            continue
        copied.append(found.step)
    for step in keep.pinned_steps(source) & {found.step for found in here}:
        _copy_pin(source, target, step)
    if copied:
        keep.prune(target, target.settings.keep)
    return copied


def recovery_point(target: Series, now: float | None = None) -> RecoveryPoint | None:
    """Return the newest checkpoint that a reader over there finds whole (names and sizes), or None."""
    for step in reversed(target.steps()):
        try:
            found = target.pointer(step)
            if not missing(target, target.stored_manifest(found)):
                return RecoveryPoint(step, max(0.0, (time.time() if now is None else now) - found.time))
        except (Absent, Damaged):
            continue
    return None


def check_bucket_rules(source: Series, target: Series) -> None:
    """Raise StoreError unless both series are in buckets whose own rules copy the one to the other."""
    from training.store.s3 import S3Objects

    if not (isinstance(source.objects, S3Objects) and isinstance(target.objects, S3Objects)):
        raise StoreError("store.replicated_by: bucket needs a store and a replica of kind s3")
    check_rules(source.objects, target.objects)


def check_rules(source: S3Objects, target: S3Objects) -> None:
    """Raise StoreError, with what to mend, unless the bucket's rules copy all that we write to the second bucket."""
    rules = source.replication()
    if not rules:
        raise StoreError(
            f"bucket {source.bucket!r} has no replication rules; add one to {target.bucket!r}, or write "
            "`replicated_by: us`"
        )
    if source.prefix != target.prefix:
        raise StoreError(
            f"a bucket's rules keep names, so the replica's prefix must be {source.prefix!r} too, not {target.prefix!r}"
        )
    wrong = []
    for number, rule in enumerate(rules, start=1):
        if why := _why_not(rule, source, target):
            wrong.append(f"rule {rule.get('ID') or number}: {why}")
    if len(wrong) == len(rules):
        raise StoreError(f"no replication rule of bucket {source.bucket!r} does: {'; '.join(wrong)}")
    for objects in (source, target):
        if not objects.versioned():
            raise StoreError(f"bucket {objects.bucket!r} keeps no versions, without which nothing is replicated")


def _why_not(rule: dict[str, Any], source: S3Objects, target: S3Objects) -> str:
    """Return why a rule does not copy what we write, or nothing."""
    if rule.get("Status") != "Enabled":
        return f"its status is {rule.get('Status')}, not Enabled"
    bucket = str(rule.get("Destination", {}).get("Bucket", "")).rpartition(":")[2]
    if bucket != target.bucket:
        return f"it copies to {bucket!r}, the replica is {target.bucket!r}"
    asked: dict[str, Any] = rule.get("Filter", {})
    conditions: dict[str, Any] = {**asked, **asked.get("And", {})}
    if conditions.get("Tag") or conditions.get("Tags"):
        return "it copies only objects with tags, and ours have none"
    prefix = str(conditions.get("Prefix", rule.get("Prefix", "")))
    if not source.prefix.startswith(prefix):
        return f"it copies only {prefix!r}, and we write below {source.prefix!r}"
    return ""


def _copy_chunk(source: Series, target: Series, name: str) -> int:
    place = chunks.key(source.name, name)
    try:
        data = source.objects.get(place)
    except Absent as error:
        raise Damaged(f"{source.objects.address}/{place} is missing") from error
    if chunks.sum_of(data) != name:
        raise Damaged(f"{source.objects.address}/{place} does not have the SHA-256 of its name", (place,))
    target.objects.put(chunks.key(target.name, name), data)
    return len(data)


def _copy_pin(source: Series, target: Series, step: int) -> None:
    record = keep.pinned(source, step)
    if record is not None and keep.pinned(target, step) != record:
        keep.pin(target, target.pointer(step), record)
