"""A finished checkpoint folder goes into a store: chunks, then the stored manifest, then the pointer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from training import manifest
from training.manifest import Manifest
from training.store import chunks, pointer
from training.store.chunks import Chunk
from training.store.errors import Absent, Damaged, StoreError, Taken
from training.store.pointer import Pointer, StoredManifest
from training.store.read import missing
from training.store.series import Series


@dataclass(frozen=True)
class Written:
    """What one put did."""

    pointer: Pointer
    new_objects: int  # chunks that the store did not have
    new_bytes: int  # their bytes as stored
    full: bool = False  # whether it is a base for the deltas of those that come


@dataclass(frozen=True)
class Base:
    """The full checkpoint that deltas are differences from."""

    digest: str
    files: Mapping[str, tuple[Chunk, ...]]
    since: int  # checkpoints since then, the one to be written counted


def put(series: Series, folder: Path, *, replace: bool = False, base_folder: Path | None = None) -> Written:
    """Store a checkpoint folder; a second put of the same one writes nothing.

    Killed at any moment, the checkpoint is there whole or not at all, and the next put goes on from the chunks that
    are there. ``base_folder`` has the files of the last full checkpoint, so that the store need not be read for
    deltas. Raises StoreError where the folder is not sound, Taken where the step has another whole checkpoint and
    ``replace`` is not said, Unreachable.
    """
    folder = Path(folder)
    if problems := manifest.verify(folder):
        raise StoreError(f"{folder} is not a sound checkpoint: {'; '.join(problems)}")
    facts = manifest.read(folder)
    if (present := _known(series, facts, replace)) is not None:
        return Written(present, 0, 0)
    newest = _newest(series)
    base = _base(series, newest)
    there = series.stored_chunks()
    earlier = [one.files for one in (newest, base) if one]
    known = _reusable(there, earlier, full=base is None)
    written = _Putting(series, folder, base, base_folder, known, there).files(facts.files)
    stored = StoredManifest(
        series.name,
        (folder / manifest.MANIFEST).read_text(),
        {name: tuple(chunk for chunk, _ in made) for name, made in written.items()},
        base.digest if base else None,
        base.since if base else 0,
    )
    committed = commit(series, stored)
    new = [chunk for made in written.values() for chunk, is_new in made if is_new]
    return Written(committed, len(new), sum(chunk.stored for chunk in new), full=base is None)


def commit(series: Series, stored: StoredManifest) -> Pointer:
    """Write the stored manifest, then the pointer: with it the checkpoint is there. Its chunks are there already."""
    found = Pointer.of(stored)
    series.objects.put(pointer.manifest_key(series.name, found.stored_manifest), stored.to_bytes())
    series.objects.put(pointer.pointer_key(series.name, found.step), found.to_bytes())
    return found


def _known(series: Series, facts: Manifest, replace: bool) -> Pointer | None:
    """Return the step's pointer where it points to this very checkpoint, whole; None where it is to be written."""
    try:
        found = series.pointer(facts.step)
        stored = series.stored_manifest(found)
    except (Absent, Damaged):
        return None
    if missing(series, stored):
        return None
    if found.manifest == facts.digest:
        return found
    if not replace:
        raise Taken(
            f"{series.address} already holds another checkpoint of step {facts.step} than {facts.folder}; "
            "give it a series of its own"
        )
    return None


def _newest(series: Series) -> StoredManifest | None:
    """Return the newest checkpoint that can be built on; a damaged one is passed over."""
    for step in reversed(series.steps()):
        try:
            return series.stored_manifest(series.pointer(step))
        except (Absent, Damaged):
            continue
    return None


def _base(series: Series, newest: StoredManifest | None) -> Base | None:
    """Return the base for the next checkpoint, or None where it is to be a full one."""
    if series.settings.coding != "delta" or newest is None or newest.since_base + 1 >= series.settings.full_every:
        return None
    if newest.base is None:
        return Base(newest.digest, newest.files, 1)
    try:
        return Base(newest.base, series.manifest_by_digest(newest.base).files, newest.since_base + 1)
    except Damaged:
        return None


@dataclass(frozen=True)
class _Putting:
    """One put under way: the folder, what its chunks may rest on, and what is there already."""

    series: Series
    folder: Path
    base: Base | None
    base_folder: Path | None
    known: Mapping[str, Chunk]
    there: Mapping[str, int]

    def files(self, names: Iterable[str]) -> dict[str, list[tuple[Chunk, bool]]]:
        """Store every file's chunks, several at once; return them with whether each was written now."""
        size = int(self.series.settings.chunk_mib * 2**20)
        with self.series.pool() as pool:
            waiting: dict[str, list[Future[tuple[Chunk, bool]]]] = {
                name: [
                    pool.submit(self._piece, name, number, at, length)
                    for number, (at, length) in enumerate(chunks.pieces(self.folder / name, size))
                ]
                for name in sorted(names)
            }
            try:
                return {name: [one.result() for one in made] for name, made in waiting.items()}
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _piece(self, name: str, number: int, at: int, length: int) -> tuple[Chunk, bool]:
        plain = chunks.read_piece(self.folder / name, at, length)
        if (same := self.known.get(chunks.sum_of(plain))) is not None:
            return same, False
        under = self._under(name, number, at, length)
        wanted = self.series.settings.coding
        if wanted == "delta" and under is None:
            wanted = "planes"
        return chunks.store(self.series.objects, self.series.name, plain, wanted, under, self.there)

    def _under(self, name: str, number: int, at: int, length: int) -> tuple[Chunk, bytes] | None:
        """Return the base's chunk at the same place with its bytes, or None where there is none that fits."""
        made = self.base.files.get(name, ()) if self.base else ()
        if number >= len(made) or made[number].size != length or made[number].base is not None:
            return None
        chunk = made[number]
        try:
            if self.base_folder is not None:
                plain = chunks.read_piece(self.base_folder / name, at, length)
                if chunks.sum_of(plain) == chunk.plain:
                    return chunk, plain
        except (OSError, Damaged):
            pass  # the local copy is gone or not the base's; the store has it
        try:
            return chunk, chunks.load(self.series.objects, self.series.name, chunk)
        except Damaged:
            return None


def _reusable(
    there: Mapping[str, int], earlier: Iterable[Mapping[str, tuple[Chunk, ...]]], full: bool
) -> dict[str, Chunk]:
    """Return chunks of earlier checkpoints by the sum of their plain bytes; into a full one no delta is taken over."""
    return {
        chunk.plain: chunk
        for files in earlier
        for made_of in files.values()
        for chunk in made_of
        if not (full and chunk.base) and all(there.get(part.object) == part.stored for part in chunk.all)
    }
