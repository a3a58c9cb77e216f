"""The two parts of a folder of tokens while it is written: tokens, and where documents end."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from training.token_index import HELD_OUT, TRAIN, Dtype, PartIndex, sums

_HASH_RANGE = 2**64


class _Part:
    """One part's files."""

    def __init__(self, folder: Path, name: str) -> None:
        self.bin, self.ends = folder / f"{name}.bin", folder / f"{name}.ends"
        self.files: tuple[BinaryIO, BinaryIO] = (self.bin.open("wb"), self.ends.open("wb"))
        self.tokens = self.documents = 0

    def add(self, documents: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> None:
        """Append documents, each with its end."""
        tokens, ends = self.files
        if documents:
            tokens.write(np.concatenate(documents).astype(dtype).tobytes())
            after = self.tokens + np.cumsum([len(document) for document in documents], dtype="<i8")
            ends.write(after.astype("<i8").tobytes())
            self.tokens, self.documents = int(after[-1]), self.documents + len(documents)


class Parts:
    """Deals documents out to training and held-out part, and appends them; a context that makes the files durable."""

    def __init__(self, folder: Path, dtype: Dtype, held_out_percent: float) -> None:
        """Open the files in ``folder``."""
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._below = int(held_out_percent / 100 * _HASH_RANGE)
        self._parts = {name: _Part(folder, name) for name in (TRAIN, HELD_OUT)}

    @property
    def documents(self) -> int:
        """How many documents have been written."""
        return sum(part.documents for part in self._parts.values())

    @property
    def tokens(self) -> int:
        """How many tokens have been written."""
        return sum(part.tokens for part in self._parts.values())

    def add(self, texts: Sequence[str], tokens: Sequence[NDArray[Any]]) -> None:
        """Append documents, each where its text's hash belongs; one without any token is left out."""
        sides: dict[str, list[NDArray[Any]]] = {TRAIN: [], HELD_OUT: []}
        for text, document in zip(texts, tokens, strict=True):
            if len(document):
                sides[HELD_OUT if self._held_out(text) else TRAIN].append(document)
        for name, documents in sides.items():
            self._parts[name].add(documents, self._dtype)

    def sums(self) -> dict[str, PartIndex]:
        """Return what an index says of the parts, read back from the disk."""
        return {name: PartIndex(p.tokens, p.documents, sums(p.bin), sums(p.ends)) for name, p in self._parts.items()}

    def _held_out(self, text: str) -> bool:
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") < self._below

    def __enter__(self) -> Parts:
        """Begin."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the files, durably unless something went wrong."""
        for part in self._parts.values():
            for file in part.files:
                with file:
                    if kind is None:
                        file.flush()
                        os.fsync(file.fileno())
