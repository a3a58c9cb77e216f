"""Real text for a rehearsal, and one endless stream of samples whose order depends on a seed alone.

The corpus is the standard library's own source on this machine, as bytes: every machine has it, it differs a little
from one Python to the next, so its fingerprint is recorded and keys every baseline. A job's place in the stream is
one number, the cursor: a step takes samples ``[cursor, cursor + B)``, whatever ``B`` and however many ranks share it.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from training.config import ConfigError

BYTES = 256  # a token is a byte
HELD_OUT_PERCENT = 5
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


@dataclass(frozen=True)
class Corpus:
    """Two texts, uint8 of shape [bytes], with no file in both; the fingerprint covers every name and byte."""

    train: Tensor
    held_out: Tensor
    fingerprint: str
    files: int


def load(name: str) -> Corpus:
    """Read the corpus ``stdlib``, or all ``*.py`` and ``*.txt`` below a folder given by its path."""
    root = Path(sysconfig.get_paths()["stdlib"]) if name == "stdlib" else Path(name)
    if not root.is_dir():
        raise ConfigError(f"data: {name!r} is neither 'stdlib' nor a folder")
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    fingerprint = hashlib.sha256()
    paths = _sources(root)
    for relative, path in paths:
        content = path.read_bytes()
        fingerprint.update(f"{relative}\0{len(content)}\0".encode() + content)
        parts[_is_held_out(relative)].append(content)
    for held_out, texts in parts.items():
        if not texts:
            part = "held-out" if held_out else "training"
            raise ConfigError(f"data: {root} has {len(paths)} files, none of them in the {part} part; it needs more")
    return Corpus(_bytes(parts[False]), _bytes(parts[True]), fingerprint.hexdigest(), len(paths))


def share(count: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return the part ``[first, end)`` of ``count`` samples that ``rank`` takes: floor or ceil of count / ranks."""
    return rank * count // ranks, (rank + 1) * count // ranks


class Stream:
    """Sample ``i`` of an endless stream: every window of the text once an epoch, each epoch in an order of its own."""

    def __init__(self, text: Tensor, sequence_length: int, seed: int) -> None:
        """Cut ``text`` into windows of ``sequence_length`` tokens, each with the one token that follows."""
        self.windows = (len(text) - 1) // sequence_length
        if self.windows < 1:
            raise ConfigError(f"data: {len(text)} bytes hold no sequence of {sequence_length} tokens")
        self.sequence_length = sequence_length
        self._text = text
        self._seed = seed
        self._order: tuple[int, Tensor] | None = None

    def window_numbers(self, first: int, count: int) -> Tensor:
        """Return which windows the samples ``[first, first + count)`` are; int64 of shape [count]."""
        parts = []
        while count > 0:
            epoch, place = divmod(first, self.windows)
            part = self._epoch(epoch)[place : place + count]
            parts.append(part)
            first, count = first + len(part), count - len(part)
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)

    def samples(self, first: int, count: int) -> Tensor:
        """Return samples ``[first, first + count)``: int64 of shape [count, sequence_length + 1]."""
        return cut(self._text, self.window_numbers(first, count), self.sequence_length)

    def _epoch(self, epoch: int) -> Tensor:
        if self._order is None or self._order[0] != epoch:
            digest = hashlib.sha256(f"{self._seed}/{epoch}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            self._order = epoch, torch.randperm(self.windows, generator=generator)
        return self._order[1]


def cut(text: Tensor, windows: Tensor, sequence_length: int) -> Tensor:
    """Return windows of ``text`` by number: int64 of shape [windows, sequence_length + 1]."""
    places = windows[:, None] * sequence_length + torch.arange(sequence_length + 1)
    return text[places].to(torch.int64)


def held_out_samples(corpus: Corpus, sequences: int, sequence_length: int) -> Tensor:
    """Return the fixed held-out set, spread evenly over the held-out text; no seed changes it."""
    windows = (len(corpus.held_out) - 1) // sequence_length
    if sequences > windows:
        raise ConfigError(f"held_out.sequences: {sequences} is more than the {windows} that the held-out text has")
    return cut(corpus.held_out, torch.arange(sequences) * windows // sequences, sequence_length)


def _sources(root: Path) -> list[tuple[str, Path]]:
    found = []
    for folder, folders, names in os.walk(root):
        # Pruned on the way down: site-packages alone may hold a hundred times more files than the library.
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        paths = (Path(folder, name) for name in names if name.endswith((".py", ".txt")))
        found += [(path.relative_to(root).as_posix(), path) for path in paths]
    return sorted(found)


def _is_held_out(relative: str) -> bool:
    return int.from_bytes(hashlib.sha256(relative.encode()).digest()[:8], "big") % 100 < HELD_OUT_PERCENT


def _bytes(texts: list[bytes]) -> Tensor:
    return torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8)
