"""Chunks: pieces of a checkpoint's files, each stored once under the SHA-256 of its stored bytes.

The name says what the bytes must be, so a damaged, exchanged or cut chunk is found by whoever reads it, and the same
bytes are never stored twice. A delta's base is a chunk that is no delta itself: two reads give any bytes back.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.store import coding
from training.store.coding import Coding
from training.store.errors import Absent, Damaged
from training.store.objects import Objects


@dataclass(frozen=True)
class Chunk:
    """Where some bytes of a file are, and how to get them back."""

    plain: str  # SHA-256 of the bytes in the file
    size: int  # how many they are there
    object: str  # SHA-256 of the stored bytes: the chunk's name
    stored: int  # how many are stored
    coding: Coding
    base: Chunk | None = None  # what a delta is the difference from

    @property
    def all(self) -> tuple[Chunk, ...]:
        """This chunk and the one it rests on."""
        return (self,) if self.base is None else (self, self.base)

    def to_json(self) -> list[Any]:
        """Return the chunk as a short list: a large checkpoint has tens of thousands."""
        plain = [self.plain, self.size, self.object, self.stored, self.coding]
        return plain if self.base is None else [*plain, self.base.to_json()]

    @classmethod
    def from_json(cls, said: Any, may_be_delta: bool = True) -> Chunk:
        """Return the chunk that :meth:`to_json` wrote; raise ValueError for anything else."""
        if not isinstance(said, list) or len(said) not in (5, 6):
            raise ValueError(f"{said!r} is no chunk")
        plain, size, stored_as, stored, kind = said[:5]
        if not (_is_sum(plain) and _is_sum(stored_as) and _is_count(size) and _is_count(stored)):
            raise ValueError(f"{said[:5]!r} is no chunk")
        if (
            kind not in coding.CODINGS
            or (kind == "delta") != (len(said) == 6)
            or (kind == "delta" and not may_be_delta)
        ):
            raise ValueError(f"{kind!r} with {'a' if len(said) == 6 else 'no'} base is no coding")
        base = cls.from_json(said[5], may_be_delta=False) if len(said) == 6 else None
        return cls(plain, size, stored_as, stored, kind, base)


def key(series: str, name: str) -> str:
    """Return the object's key; 256 folders keep a folder store's directories short."""
    return f"{series}/chunks/{name[:2]}/{name}"


def pieces(path: Path, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield place and length of each piece of a file; an empty file has none."""
    size = path.stat().st_size
    for at in range(0, size, chunk_bytes):
        yield at, min(chunk_bytes, size - at)


def read_piece(path: Path, at: int, length: int) -> bytes:
    """Return some bytes of a file; raise :class:`~training.store.errors.Damaged` where it ends too early."""
    with path.open("rb") as file:
        data = os.pread(file.fileno(), length, at)
    if len(data) != length:
        raise Damaged(f"{path} ends after {at + len(data)} bytes; {at + length} were expected")
    return data


def sum_of(data: bytes) -> str:
    """Return the SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def store(
    objects: Objects,
    series: str,
    plain: bytes,
    wanted: Coding,
    base: tuple[Chunk, bytes] | None,
    there: Mapping[str, int],
) -> tuple[Chunk, bool]:
    """Store some bytes unless ``there`` (name to size) has them; return the chunk, and whether it was written now."""
    kind, coded = coding.encode(plain, wanted, base[1] if base else None)
    name = sum_of(coded)
    chunk = Chunk(sum_of(plain), len(plain), name, len(coded), kind, base[0] if base and kind == "delta" else None)
    if there.get(name) == len(coded):
        return chunk, False
    objects.put(key(series, name), coded)
    return chunk, True


def load(objects: Objects, series: str, chunk: Chunk) -> bytes:
    """Return a chunk's plain bytes, checked on the way at each step; raise Damaged with the key that is to blame."""
    base = load(objects, series, chunk.base) if chunk.base else None
    stored = _stored(objects, series, chunk)
    place = key(series, chunk.object)
    try:
        plain = coding.decode(stored, chunk.coding, chunk.size, base)
    except Damaged as error:
        raise Damaged(f"{objects.address}/{place}: {error}") from error
    if len(plain) != chunk.size or sum_of(plain) != chunk.plain:
        raise Damaged(f"{objects.address}/{place} does not give the bytes {chunk.plain} that its checkpoint needs")
    return plain


def _stored(objects: Objects, series: str, chunk: Chunk) -> bytes:
    place = key(series, chunk.object)
    try:
        stored = objects.get(place)
    except Absent as error:
        raise Damaged(f"{objects.address}/{place} is missing") from error
    if len(stored) != chunk.stored:
        said = f"{objects.address}/{place} has {len(stored)} bytes; {chunk.stored} were stored"
        raise Damaged(said, (place,))
    if (found := sum_of(stored)) != chunk.object:
        raise Damaged(f"{objects.address}/{place} has SHA-256 {found}, which is not its name", (place,))
    return stored


def _is_sum(said: Any) -> bool:
    return isinstance(said, str) and len(said) == 64 and not set(said) - set("0123456789abcdef")


def _is_count(said: Any) -> bool:
    return isinstance(said, int) and not isinstance(said, bool) and said >= 0
