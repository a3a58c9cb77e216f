"""What a checkpoint folder must hold: SHA-256 sums of its files, and what it is (step, tokens, purpose). No torch.

A checkpoint is written into a hidden folder, summed, and renamed: a folder called ``step_00000070`` is whole when
it appears. ``verify`` is for what happens afterwards: a lost file, a flipped bit, a careless edit.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

MANIFEST = "manifest.json"
SCHEMA = 1
Purpose = Literal["periodic", "hand_over", "final", "forensic"]
_QUARANTINE = ".quarantined"  # hidden: neither a trainer nor a live rule takes what lies there for a checkpoint
_SUMMED_AT_ONCE = 8  # files; hashlib lets other threads run, and one thread's SHA-256 is slower than an NVMe disk


class ManifestError(ValueError):
    """A folder has no manifest, or one that cannot be read; the message names the folder and what is missing."""


@dataclass(frozen=True)
class FileSum:
    """Size and SHA-256 of one file of a checkpoint."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """``manifest.json``: what a checkpoint is, and the sums of all files beside it."""

    step: int
    tokens: int
    purpose: Purpose
    world: int  # ranks of the job that wrote it
    config_digest: str
    files: Mapping[str, FileSum]
    time: float
    extra: Mapping[str, Any] = field(default_factory=dict)
    layout: Mapping[str, int] = field(default_factory=dict)  # ranks along each axis of parallelism
    commit: str | None = None  # of the code that wrote it
    schema: int = SCHEMA
    folder: Path = Path()  # where it was read from; not part of the file
    digest: str = ""  # SHA-256 of manifest.json itself: one string that stands for every byte of the checkpoint

    @property
    def bytes(self) -> int:
        """Bytes of all files together, without the manifest."""
        return sum(file.bytes for file in self.files.values())


def digest_of(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def folder_name(step: int) -> str:
    """Return ``step_00000070``: names sort as steps do."""
    return f"step_{step:08d}"


def write(
    folder: Path,
    *,
    step: int,
    tokens: int,
    purpose: Purpose,
    world: int,
    config_digest: str,
    extra: Mapping[str, Any] | None = None,
    layout: Mapping[str, int] | None = None,
    commit: str | None = None,
) -> Manifest:
    """Sum and fsync every file in ``folder``, then write its manifest whole; return it as :func:`read` would."""
    if purpose not in get_args(Purpose):
        raise ManifestError(f"{folder}: purpose {purpose!r} is none of {', '.join(get_args(Purpose))}")
    files = _sums(_files(folder), durable=True)
    if not files:
        raise ManifestError(f"{folder} holds no file; a checkpoint of nothing is not a checkpoint")
    manifest = Manifest(
        step, tokens, purpose, world, config_digest, files, time.time(), dict(extra or {}), dict(layout or {}), commit
    )
    plain = dataclasses.asdict(manifest)
    del plain["folder"], plain["digest"]
    _write_whole(folder / MANIFEST, json.dumps(plain, indent=1, sort_keys=True, allow_nan=False) + "\n")
    return read(folder)


def publish(temporary: Path, final: Path) -> Path:
    """Rename a finished folder to its final name, durably; replace what is there only if that is not sound."""
    if final.exists():
        if not verify(final) and read(final).files == read(temporary).files:
            shutil.rmtree(temporary)
            return final
        discarded = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}.discarded."))
        os.replace(final, discarded / final.name)
        os.replace(temporary, final)
        shutil.rmtree(discarded)
    else:
        os.replace(temporary, final)
    sync(final.parent)
    return final


def read(folder: Path) -> Manifest:
    """Read the manifest of ``folder``; raise :class:`ManifestError` where there is none or it is malformed."""
    folder = Path(folder)
    path = folder / MANIFEST
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ManifestError(f"{folder} has no {MANIFEST}, so nothing says what it should hold") from error
    return dataclasses.replace(parse(raw, str(path)), folder=folder)


def parse(raw: bytes, where: str) -> Manifest:
    """Return the manifest that some bytes are; raise :class:`ManifestError`, naming ``where`` they were found."""
    try:
        plain = json.loads(raw)
        plain["files"] = {name: FileSum(**value) for name, value in plain["files"].items()}
        manifest = Manifest(**plain, digest=hashlib.sha256(raw).hexdigest())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ManifestError(f"{where} is not a manifest ({type(error).__name__}: {error})") from error
    if manifest.schema != SCHEMA:
        raise ManifestError(f"{where} has schema {manifest.schema!r}; this version reads schema {SCHEMA}")
    if not manifest.files:
        raise ManifestError(f"{where} names no file; a checkpoint of nothing is not a checkpoint")
    for name in manifest.files:
        if name == MANIFEST or Path(name).is_absolute() or ".." in Path(name).parts:
            raise ManifestError(f"{where} names a file {name!r}, which is not inside of a checkpoint")
    return manifest


def verify(folder: Path) -> list[str]:
    """Return a sentence for every difference between ``folder`` and its manifest; an empty list means sound."""
    try:
        manifest = read(folder)
    except ManifestError as error:
        return [str(error)]
    present = _files(Path(folder))
    problems = [f"{folder}: {name} is missing" for name in sorted(manifest.files.keys() - present.keys())]
    problems += [f"{folder}: {name} is not in the manifest" for name in sorted(present.keys() - manifest.files.keys())]
    both = sorted(manifest.files.keys() & present.keys())
    try:
        sums = _sums({name: present[name] for name in both})
    except ManifestError as error:
        return [*problems, str(error)]
    for name in both:
        wanted, found = manifest.files[name], sums[name]
        if found.bytes != wanted.bytes:
            problems.append(f"{folder}: {name} has {found.bytes} bytes, the manifest says {wanted.bytes}")
        elif found.sha256 != wanted.sha256:
            problems.append(f"{folder}: {name} has SHA-256 {found.sha256}, the manifest says {wanted.sha256}")
    return problems


def whole(checkpoints: Path) -> list[Manifest]:
    """Return the checkpoints in a folder that have a readable manifest, oldest step first.

    Sums are not computed here (a look at 500 GB would take minutes); call :func:`verify` before trusting one.
    """
    found = []
    for folder in sorted(Path(checkpoints).glob("step_*")):
        try:
            found.append(read(folder))
        except ManifestError:
            continue
    return sorted(found, key=lambda manifest: manifest.step)


def pin(folder: Path, because: str) -> None:
    """Protect a checkpoint from pruning, by a file beside it, so that its own bytes and sums stay as they are."""
    _write_whole(_pin_file(folder), because + "\n")


def unpin(folder: Path) -> None:
    """Take a checkpoint's protection away; not an error where there is none."""
    _pin_file(folder).unlink(missing_ok=True)


def pinned(folder: Path) -> str | None:
    """Return why a checkpoint is pinned, or None."""
    try:
        return _pin_file(folder).read_text().strip()
    except FileNotFoundError:
        return None


def prune(checkpoints: Path, keep: int) -> list[Path]:
    """Delete the oldest periodic checkpoints beyond ``keep``; a hand-over, a final or a pinned one always stays."""
    periodic = [m for m in whole(checkpoints) if m.purpose == "periodic" and pinned(m.folder) is None]
    removed = [manifest.folder for manifest in periodic[: max(0, len(periodic) - keep)]]
    for folder in removed:
        # Renamed first: a reader must not take a half-deleted folder for a checkpoint.
        hidden = folder.with_name(f".{folder.name}.pruned")
        os.replace(folder, hidden)
        shutil.rmtree(hidden)
    return removed


def quarantine(folder: Path, because: str) -> Path:
    """Put a damaged checkpoint out of every reader's sight, undeleted, with the reason beside it; return its place."""
    folder = Path(folder)
    there = folder.parent / _QUARANTINE
    there.mkdir(exist_ok=True)
    place = there / folder.name
    if place.exists():  # damaged a second time, after it was written anew: the newer one is kept
        shutil.rmtree(place)
    os.replace(folder, place)
    _write_whole(there / f"{folder.name}.because", because + "\n")
    return place


def quarantined(checkpoints: Path) -> dict[str, str]:
    """Return the reason for each checkpoint that was put aside as damaged, by its folder's name."""
    reasons = sorted((Path(checkpoints) / _QUARANTINE).glob("step_*.because"))
    return {path.stem: path.read_text().strip() for path in reasons}


def sync(path: Path) -> None:
    """Make a file's bytes, or a folder's names, survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _pin_file(folder: Path) -> Path:
    return Path(folder).with_name(f"{Path(folder).name}.pinned")


def _files(folder: Path) -> dict[str, Path]:
    paths = (path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    return {path.relative_to(folder).as_posix(): path for path in paths if path != folder / MANIFEST}


def _sums(files: Mapping[str, Path], durable: bool = False) -> dict[str, FileSum]:
    """Return the sums of several files, some at once."""
    if len(files) < 2:
        return {name: _sum(path, durable) for name, path in files.items()}
    with ThreadPoolExecutor(min(_SUMMED_AT_ONCE, len(files))) as pool:
        sums: Iterable[FileSum] = pool.map(lambda path: _sum(path, durable), files.values())
        return dict(zip(files, sums, strict=True))


def _sum(path: Path, durable: bool = False) -> FileSum:
    if path.is_symlink():
        raise ManifestError(f"{path} is a link; a checkpoint holds its own bytes")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if durable:
            os.fsync(file.fileno())
        return FileSum(os.fstat(file.fileno()).st_size, digest)


def _write_whole(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync(path.parent)
