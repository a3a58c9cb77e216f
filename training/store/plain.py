"""Where promoted checkpoints live: today a folder. A checkpoint is there whole or not at all. No torch."""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from training import manifest
from training.store.errors import StoreError


@dataclass(frozen=True)
class FolderStore:
    """A store in a folder of a file system that the cluster shares; keys are relative paths below ``root``."""

    root: Path

    def put(self, source: Path, key: str) -> Path:
        """Copy a checkpoint folder to ``key`` and return its place; a second put of the same does nothing.

        The copy is checked against the manifest's sums before it gets its name. Raises :class:`StoreError` if the
        source is not sound, or if ``key`` already holds a sound checkpoint with other content.
        """
        source, target = Path(source), self.path(key)
        if self._holds(target, source):
            return target
        if problems := manifest.verify(source):
            raise StoreError(f"{source} is not a sound checkpoint: {'; '.join(problems)}")
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_abandoned(target)
        incoming = target.with_name(f".{target.name}.incoming.{socket.gethostname()}.{os.getpid()}")
        try:
            _copy(source, incoming)
            if problems := manifest.verify(incoming):
                raise StoreError(f"the copy of {source} differs from it: {'; '.join(problems)}")
            manifest.publish(incoming, target)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        return target

    def path(self, key: str) -> Path:
        """Return the place of ``key``; raise :class:`StoreError` for one that leads out of the store."""
        parts = Path(key).parts
        if not parts or Path(key).is_absolute() or any(part == ".." or part.startswith(".") for part in parts):
            raise StoreError(f"{key!r} is no key; keys are relative paths without '..' or hidden names")
        return Path(self.root).absolute() / key

    def exists(self, key: str) -> bool:
        """Whether a checkpoint with a readable manifest lies at ``key`` (its sums are :meth:`verify`'s business)."""
        return (self.path(key) / manifest.MANIFEST).is_file()

    def verify(self, key: str) -> list[str]:
        """Return what is wrong with the checkpoint at ``key``; an empty list means sound."""
        return manifest.verify(self.path(key))

    def pin(self, key: str, because: str = "promoted") -> None:
        """Protect a checkpoint from pruning; raise :class:`StoreError` where there is none."""
        if not self.exists(key):
            raise StoreError(f"{self.path(key)} holds no checkpoint that could be pinned")
        manifest.pin(self.path(key), because)

    def pinned(self, key: str) -> str | None:
        """Return why ``key`` is pinned, or None."""
        return manifest.pinned(self.path(key))

    def _holds(self, target: Path, source: Path) -> bool:
        if not target.exists() or manifest.verify(target):
            return False  # absent, or damaged: then a sound copy replaces it
        try:
            wanted = manifest.read(source)
        except manifest.ManifestError as error:
            raise StoreError(f"{source} is not a sound checkpoint: {error}") from error
        if manifest.read(target).digest != wanted.digest:
            raise StoreError(f"{target} already holds another checkpoint than {source}; give it a key of its own")
        return True


def _copy(source: Path, target: Path) -> None:
    """Copy a folder and fsync every file and folder of the copy."""
    shutil.copytree(source, target)
    for path in [*target.rglob("*"), target]:
        manifest.sync(path)


def _clear_abandoned(target: Path) -> None:
    """Remove what earlier processes on this host left unfinished for the same key."""
    prefix = f".{target.name}.incoming.{socket.gethostname()}."
    for path in target.parent.glob(f"{prefix}*"):
        if not Path("/proc", path.name.removeprefix(prefix)).exists():
            shutil.rmtree(path, ignore_errors=True)
