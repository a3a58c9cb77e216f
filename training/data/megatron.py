"""Megatron's indexed token files: ``x.bin``, flat tokens, and ``x.idx``, which says where sequences and documents end.

The ``.idx``, little-endian: the nine bytes ``MMIDIDX\\0\\0``, version (uint64, 1), type of a token (uint8), how many
sequences and how many document marks (uint64 each); then of each sequence its length (int32) and the byte of ``.bin``
at which it begins (int64), and the sequence with which each document begins (int64), with one mark behind the last.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from training.config import ConfigError

MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<QBQQ")
WIDTHS = {1: 1, 3: 2, 4: 4, 5: 8, 8: 2}  # uint8, int16, int32, int64, uint16; the other codes are no tokens
_LINKS_CHECKED = 2**20


@dataclass(frozen=True)
class MegatronIndex:
    """What an ``.idx`` says of its ``.bin``."""

    width: int  # bytes of a token
    tokens: int
    ends: Tensor  # int64 [documents]: tokens before the end of each


def read_idx(path: Path) -> MegatronIndex:
    """Read an ``.idx``; raise ConfigError for one cut short, of another format, or whose sequences are not in a row."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"data: {path} cannot be read: {error.strerror}") from error
    if not content.startswith(MAGIC):
        raise ConfigError(f"data: {path} is no Megatron index: it begins with {content[:9]!r}, not {MAGIC!r}")
    if len(content) < len(MAGIC) + _HEAD.size:
        raise ConfigError(f"data: {path} was cut short: {len(content)} bytes do not hold the head of an index")
    version, code, sequences, marks = _HEAD.unpack_from(content, len(MAGIC))
    if version != 1 or code not in WIDTHS:
        raise ConfigError(f"data: {path} has version {version} and type {code}; read are version 1 and {list(WIDTHS)}")
    at = len(MAGIC) + _HEAD.size
    wanted = at + 12 * sequences + 8 * marks
    if len(content) < wanted or not sequences:
        how = "holds no sequence" if not sequences else f"was cut short: {len(content)} bytes, its head says {wanted}"
        raise ConfigError(f"data: {path} {how}")
    lengths = _array(content, at, sequences, torch.int32)
    pointers = _array(content, at + 4 * sequences, sequences, torch.int64)
    firsts = _array(content, at + 12 * sequences, marks, torch.int64)
    return _checked(path, WIDTHS[code], lengths, pointers, firsts)


def _checked(path: Path, width: int, lengths: Tensor, pointers: Tensor, firsts: Tensor) -> MegatronIndex:
    some = torch.linspace(0, len(lengths) - 2, min(len(lengths) - 1, _LINKS_CHECKED), dtype=torch.float64).long()
    broken = (pointers[some] + lengths[some].long() * width != pointers[some + 1]).nonzero()
    if len(broken) or int(pointers[0]) != 0:
        where = int(some[broken[0]]) + 1 if len(broken) else 0
        raise ConfigError(
            f"data: sequence {where} of {path} does not begin where the one before it ends; only files whose "
            "sequences lie in a row are read"
        )
    starts = torch.cat((pointers, (pointers[-1] + int(lengths[-1]) * width).view(1))) // width
    if len(firsts) and not 0 <= int(firsts.min()) <= int(firsts.max()) < len(starts):
        raise ConfigError(f"data: {path} has documents that begin behind its last sequence, {len(lengths)}")
    ends = starts[firsts[1:]] if len(firsts) > 1 else starts[1:]
    return MegatronIndex(width, int(starts[-1]), ends.contiguous())


def _array(content: bytes, at: int, count: int, dtype: torch.dtype) -> Tensor:
    # Copied: the arrays lie at bytes that no multiple of their width is.
    size = count * dtype.itemsize
    return torch.frombuffer(bytearray(content[at : at + size]), dtype=dtype) if count else torch.empty(0, dtype=dtype)
