"""Objects as files below a folder that every user of the store can reach: NFS, Lustre, a local disk."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from training.manifest import sync
from training.store.errors import Absent, StoreError, Unreachable
from training.store.objects import Entry, checked_key

_DRAFT = ".draft."
# What os.link says where a file system has no links (some FUSE mounts, object gateways).
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


@dataclass(frozen=True)
class FolderObjects:
    """Each object is a file; it gets its name by a rename once its bytes are on the disk."""

    root: Path

    @property
    def address(self) -> str:
        """The folder."""
        return str(self.root)

    def put(self, key: str, data: bytes) -> None:
        """See :class:`~training.store.objects.Objects`."""
        with self._draft(key, data) as (draft, final):
            os.replace(draft, final)
            sync(final.parent)

    def create(self, key: str, data: bytes) -> bool:
        """See :class:`~training.store.objects.Objects`; a hard link decides, which fails where the name is taken."""
        with self._draft(key, data) as (draft, final):
            try:
                os.link(draft, final)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if final.exists():
                    return False
                os.replace(draft, final)
            sync(final.parent)
        return True

    def get(self, key: str) -> bytes:
        """See :class:`~training.store.objects.Objects`."""
        try:
            return self._path(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise Absent(f"{self._path(key)} is missing") from error
        except OSError as error:
            raise Unreachable(f"{self._path(key)} cannot be read: {error}") from error

    def listed(self, prefix: str) -> Mapping[str, Entry]:
        """See :class:`~training.store.objects.Objects`; drafts are hidden files and are not listed."""
        folder = self.root / prefix.rpartition("/")[0]
        found = {}
        for path in _below(folder):
            key = path.relative_to(self.root).as_posix()
            if key.startswith(prefix):
                with contextlib.suppress(FileNotFoundError):  # deleted while we looked
                    status = path.stat()
                    found[key] = Entry(status.st_size, status.st_mtime)
        return found

    def delete(self, keys: Iterable[str]) -> None:
        """See :class:`~training.store.objects.Objects`."""
        for key in keys:
            with contextlib.suppress(FileNotFoundError):
                self._path(key).unlink()

    def clear_unfinished(self, prefix: str, older_than_seconds: float) -> int:
        """See :class:`~training.store.objects.Objects`."""
        cleared, now = 0, time.time()
        for path in _below(self.root / prefix, drafts=True):
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime >= older_than_seconds:
                    path.unlink()
                    cleared += 1
        return cleared

    @contextlib.contextmanager
    def _draft(self, key: str, data: bytes) -> Iterator[tuple[Path, Path]]:
        """Yield a hidden file with the data, on the disk, and the name that it is to have; remove the hidden one."""
        final = self._path(key)
        draft = final.with_name(
            f".{final.name[:64]}{_DRAFT}{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
        )
        try:
            _make_folders(final.parent)
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # umask decides, as for other files
            with open(handle, "wb", buffering=0) as file:
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
                os.fsync(handle)
            yield draft, final
        except OSError as error:
            raise Unreachable(f"{final} cannot be written: {error}") from error
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.root / checked_key(key)


def _below(folder: Path, drafts: bool = False) -> Iterator[Path]:
    if not folder.is_dir():
        return
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.startswith(".") == drafts and (not drafts or _DRAFT in name):
                yield Path(where, name)


def _make_folders(folder: Path) -> None:
    """Make a folder and its parents so that their names survive a power failure too."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        if folder.parent == folder:
            raise StoreError(f"{folder} cannot be made")
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        sync(one.parent)
