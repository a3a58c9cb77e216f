"""A checkpoint comes out of a store: whole, each byte checked while it is read, or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from training import manifest
from training.store import chunks
from training.store.chunks import Chunk
from training.store.errors import Damaged, Unreachable
from training.store.pointer import StoredManifest
from training.store.series import Series

Answer = TypeVar("Answer")


def fetch(series: Series, step: int, into: Path) -> Path:
    """Return ``into/step_00000070`` with the checkpoint's files, read in parallel; one that is there and sound stays.

    It gets its name once it equals its manifest. Raises Absent where the store has no such step, Damaged (with the
    objects to blame) where it is not what was stored, Unreachable.
    """
    stored = series.stored_manifest(series.pointer(step))
    final = Path(into) / manifest.folder_name(step)
    if final.exists() and not manifest.verify(final) and manifest.read(final).digest == stored.facts.digest:
        return final
    _clear_abandoned(final)
    draft = final.with_name(f"{_draft_prefix(final)}{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        _write_files(series, stored, draft)
        (draft / manifest.MANIFEST).write_text(stored.manifest)
        if problems := manifest.verify(draft):  # the files as a whole, not only piece by piece
            raise Damaged(f"{series.address}, step {step}: {'; '.join(problems)}")
        for path in [*draft.rglob("*"), draft]:
            manifest.sync(path)
        return manifest.publish(draft, final)
    except OSError as error:
        raise Unreachable(f"{final} cannot be written: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def problems(series: Series, step: int, *, deep: bool = True) -> list[Damaged]:
    """Return all that is wrong with a checkpoint; an empty list means sound.

    ``deep`` reads every byte and gives back every chunk, as a restore would; else the names and sizes of its chunks
    are compared with a listing. Raises Absent, Unreachable.
    """
    try:
        stored = series.stored_manifest(series.pointer(step))
    except Damaged as error:
        return [error]
    if not deep:
        return missing(series, stored)
    with series.pool() as pool:
        return [damage for name in sorted(stored.files) for damage in _damages(series, stored, name, pool)]


def missing(series: Series, stored: StoredManifest) -> list[Damaged]:
    """Return a damage for each chunk that the store does not list, or lists with another size."""
    there = series.stored_chunks()
    found = []
    for name, size in sorted({(chunk.object, chunk.stored) for chunk in stored.chunks}):
        where = f"{series.objects.address}/{chunks.key(series.name, name)}"
        if name not in there:
            found.append(Damaged(f"{where} is missing"))
        elif there[name] != size:
            damaged = (chunks.key(series.name, name),)
            found.append(Damaged(f"{where} has {there[name]} bytes; {size} were stored", damaged))
    return found


def _draft_prefix(final: Path) -> str:
    return f".{final.name}.fetched.{socket.gethostname()}."


def _clear_abandoned(final: Path) -> None:
    """Remove what earlier processes on this host left half-fetched of the same checkpoint."""
    prefix = _draft_prefix(final)
    for path in final.parent.glob(f"{prefix}*"):
        if not Path("/proc", path.name.removeprefix(prefix)).exists():
            shutil.rmtree(path, ignore_errors=True)


def _damages(series: Series, stored: StoredManifest, name: str, pool: ThreadPoolExecutor) -> list[Damaged]:
    """Read a file's chunks, several at once but never more than a few ahead, and sum them in their order."""
    made_of, found, whole = stored.files[name], [], hashlib.sha256()
    ahead = 2 * series.settings.parallel
    for first in range(0, len(made_of), ahead):
        read = [
            pool.submit(chunks.load, series.objects, series.name, chunk) for chunk in made_of[first : first + ahead]
        ]
        for one in read:
            try:
                whole.update(one.result())
            except Damaged as error:
                found.append(error)
    wanted = stored.facts.files[name].sha256
    if not found and whole.hexdigest() != wanted:
        found.append(Damaged(f"{series.address}: {name} has SHA-256 {whole.hexdigest()}, its manifest says {wanted}"))
    return found


def _write_files(series: Series, stored: StoredManifest, draft: Path) -> None:
    """Make the files at their full size, then let every chunk be written at its place as it arrives."""
    places: list[tuple[Path, int, Chunk]] = []
    for name, made_of in stored.files.items():
        path, at = draft / name, 0
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        for chunk in made_of:
            places.append((path, at, chunk))
            at += chunk.size
        os.truncate(path, at)

    def write(place: tuple[Path, int, Chunk]) -> None:
        path, at, chunk = place
        data = chunks.load(series.objects, series.name, chunk)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    _in_parallel(series, places, write)


Item = TypeVar("Item")


def _in_parallel(series: Series, items: list[Item], work: Callable[[Item], Answer]) -> list[Answer]:
    """Return ``work`` of each item, several at once; the first error ends what has not begun."""
    with series.pool() as pool:
        waiting: list[Future[Answer]] = [pool.submit(work, item) for item in items]
        try:
            return [one.result() for one in waiting]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
