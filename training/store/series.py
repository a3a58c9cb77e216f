"""One stage's checkpoints in a store: which there are, and reading what is written of them.

A series has one writer at a time (the uploader of the stage's job, or promotion once the job is over) and any number
of readers. Chunks are shared within a series, not between them, so that removing a checkpoint of one stage never
looks at another's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from training.store import pointer
from training.store.chunks import sum_of
from training.store.errors import Absent, Damaged, StoreError
from training.store.objects import Objects, checked_key
from training.store.pointer import Pointer, StoredManifest
from training.store.settings import StoreSettings, open_objects


@dataclass(frozen=True)
class Series:
    """The checkpoints under a name such as ``gpt_stdlib/20260101_000000/gpus_8``."""

    objects: Objects
    name: str
    settings: StoreSettings = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse a name that leads elsewhere."""
        checked_key(self.name)

    @property
    def address(self) -> str:
        """Where the series is, for people."""
        return f"{self.objects.address}/{self.name}"

    def steps(self) -> list[int]:
        """Return the steps that have a pointer, oldest first. What they point to is not looked at."""
        keys = self.objects.listed(f"{self.name}/checkpoints/")
        return sorted(step for step in map(pointer.step_of, keys) if step is not None)

    def pointer(self, step: int) -> Pointer:
        """Return a step's pointer; raise Absent where there is none, Damaged where it is not of this step."""
        key = pointer.pointer_key(self.name, step)
        where = f"{self.objects.address}/{key}"
        found = Pointer.from_bytes(self.objects.get(key), where)
        if (found.series, found.step) != (self.name, step):
            raise Damaged(f"{where} is the pointer of step {found.step} of {found.series}", (key,))
        return found

    def pointers(self) -> Iterator[Pointer | Damaged]:
        """Yield every pointer, oldest first, or in its place the damage; one that goes away meanwhile is left out."""
        for step in self.steps():
            try:
                yield self.pointer(step)
            except Damaged as error:
                yield error
            except Absent:
                continue

    def stored_manifest(self, found: Pointer) -> StoredManifest:
        """Return what a pointer points to; raise Damaged where it is missing, altered, or says otherwise."""
        stored = self.manifest_by_digest(found.stored_manifest)
        if different := found.differences(Pointer.of(stored)):
            where = f"{self.objects.address}/{pointer.pointer_key(self.name, found.step)}"
            raise Damaged(f"{where} is stale or altered: {'; '.join(different)}")
        return stored

    def manifest_by_digest(self, digest: str) -> StoredManifest:
        """Return a stored manifest by its name; raise Damaged where it is missing or altered."""
        key = pointer.manifest_key(self.name, digest)
        where = f"{self.objects.address}/{key}"
        try:
            data = self.objects.get(key)
        except Absent as error:
            raise Damaged(f"{where} is missing") from error
        if (found := sum_of(data)) != digest:
            raise Damaged(f"{where} has SHA-256 {found}, which is not its name", (key,))
        return StoredManifest.from_bytes(data, where)

    def stored_chunks(self) -> dict[str, int]:
        """Return size by name of all chunks that lie in the store, referred to or not."""
        found = self.objects.listed(f"{self.name}/chunks/")
        return {key.rpartition("/")[2]: entry.bytes for key, entry in found.items()}

    def pool(self) -> ThreadPoolExecutor:
        """Return as many threads as the settings allow; whoever asks ends them."""
        return ThreadPoolExecutor(self.settings.parallel, thread_name_prefix="store")


def open_series(settings: StoreSettings, name: str) -> Series:
    """Return a series of the store itself."""
    return Series(open_objects(settings.place, settings), name, settings)


def open_replica(settings: StoreSettings, name: str) -> Series | None:
    """Return the series' copy in the second region, or None where there is to be none."""
    if settings.replica is None:
        return None
    if settings.replica == settings.place:
        raise StoreError("store.replica: is the store itself; a second region is another place")
    return Series(open_objects(settings.replica, settings), name, dataclasses.replace(settings, replica=None))
