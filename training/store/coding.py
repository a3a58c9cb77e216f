"""How the bytes of a chunk are stored: as they are, with byte planes apart, or as a difference from a base.

Numbers of a training state have noisy mantissas and steady exponents. Bytes of equal significance are put together
(byte planes: all first bytes of the 4-byte words, then all second ones, ...), so that a general compressor sees the
steady ones by themselves. A difference is the XOR with the same bytes of an earlier checkpoint: what did not change
becomes zero, and nothing is rounded. Whether that pays is measured in ``tests/benchmarks/test_deltas.py``.
"""

from __future__ import annotations

import struct
from typing import Literal, get_args

import zstandard

from training.store.errors import Damaged

Coding = Literal["raw", "planes", "delta"]
CODINGS = get_args(Coding)

_WORD = 4  # bytes of a float32; a bfloat16's two planes alternate in it and stay apart all the same
_LEVEL = 1  # what a higher level finds in mantissas is noise: level 3 and 9 saved under 1% more on Adam state
_WORTH = 0.97  # of the bytes: less saving than this is not worth the time that reading it back takes
_HEAD = struct.Struct("<BI")  # is the plane compressed, and its length as stored


def encode(plain: bytes, wanted: Coding, base: bytes | None = None) -> tuple[Coding, bytes]:
    """Return the bytes to store and the coding that they are in: the wanted one, or ``raw`` where that saves nothing.

    ``base`` has the length of ``plain``; it is used for ``delta`` only.
    """
    if wanted == "raw":
        return "raw", plain
    if wanted == "delta" and base is not None:
        coded = _split(xor(plain, base))
        return ("delta", coded) if len(coded) < _WORTH * len(plain) else ("raw", plain)
    coded = _split(plain)
    return ("planes", coded) if len(coded) < _WORTH * len(plain) else ("raw", plain)


def decode(stored: bytes, coding: Coding, length: int, base: bytes | None = None) -> bytes:
    """Return the plain bytes; raise :class:`~training.store.errors.Damaged` where they cannot be had."""
    if coding == "raw":
        return stored
    joined = _join(stored, length)
    if coding == "planes":
        return joined
    if base is None or len(base) != length:
        raise Damaged(f"a difference of {length} bytes has a base of {len(base) if base is not None else 'no'} bytes")
    return xor(joined, base)


def xor(one: bytes, other: bytes) -> bytes:
    """Return the XOR of two strings of one length; Python's long integers do it a machine word at a time."""
    return (int.from_bytes(one, "little") ^ int.from_bytes(other, "little")).to_bytes(len(one), "little")


def _split(plain: bytes) -> bytes:
    """Return the byte planes, one behind the other, each compressed where that is worth it."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    pieces = []
    for first in range(_WORD):
        plane = plain[first::_WORD]
        packed = compressor.compress(plane)
        small = len(packed) < _WORTH * len(plane)
        pieces += [_HEAD.pack(small, len(packed if small else plane)), packed if small else plane]
    return b"".join(pieces)


def _join(stored: bytes, length: int) -> bytes:
    """Undo :func:`_split`; ``length`` bounds what a decompressor may make, whatever the bytes claim."""
    joined, at = bytearray(length), 0
    decompressor = zstandard.ZstdDecompressor()
    try:
        for first in range(_WORD):
            packed, size = _HEAD.unpack_from(stored, at)
            at += _HEAD.size
            plane, at = stored[at : at + size], at + size
            wanted = len(range(first, length, _WORD))
            joined[first::_WORD] = decompressor.decompress(plane, max_output_size=wanted) if packed else plane
    except (struct.error, zstandard.ZstdError, ValueError) as error:
        raise Damaged(f"{len(stored)} stored bytes are no byte planes of {length} bytes: {error}") from error
    return bytes(joined)
