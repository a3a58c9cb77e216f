"""The seam to the outside: a store is named bytes, and six things that can be done with them.

All that makes a checkpoint whole or absent rests on these promises alone, so that a folder, AWS, and a server that
knows no conditional writes are equals: an object is seen with all its bytes or not at all; ``put`` is durable when it
returns; what was written is listed at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from training.store.errors import StoreError


@dataclass(frozen=True)
class Entry:
    """What a listing says of an object."""

    bytes: int
    modified: float  # seconds since 1970, by the store's own clock


class Objects(Protocol):
    """Named bytes. Every method may raise :class:`~training.store.errors.Unreachable`."""

    @property
    def address(self) -> str:
        """Where they are, for people: a folder, or ``s3://bucket/prefix``."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write an object whole and durably; what was there is replaced."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Write an object only where none is; return whether it was written.

        Of two who create at once one wins where the store can (a link, a conditional write). Where it cannot, both may
        return True and the last one stays; that is why a series has one writer.
        """
        ...

    def get(self, key: str) -> bytes:
        """Return an object's bytes; raise :class:`~training.store.errors.Absent` where there is none."""
        ...

    def listed(self, prefix: str) -> Mapping[str, Entry]:
        """Return all objects whose keys begin with ``prefix``, by key."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; one that is not there is no error."""
        ...

    def clear_unfinished(self, prefix: str, older_than_seconds: float) -> int:
        """Remove what writers that died left half-written under ``prefix``; return how many pieces."""
        ...


def checked_key(key: str) -> str:
    """Return a key that stays inside of its store; raise :class:`~training.store.errors.StoreError` for any other."""
    parts = key.split("/")
    if any(part in ("", ".", "..") or part.startswith(".") or "\0" in part or "\\" in part for part in parts):
        raise StoreError(f"{key!r} is no key; keys are relative paths without '..' or hidden names")
    return key
