"""Samples without any input: random tokens, drawn once. They part the time of reading from that of computing.

What a model learns of them is nothing: the best loss is ln(vocabulary), so records mark it as synthetic, and gates on
the loss refuse it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from training.config.data import Skips

TOKENS = 2**20  # of the table that all samples are taken from; 8 MiB


class Synthetic:
    """The samples of a table, over and over."""

    def __init__(self, vocabulary: int, sequence_length: int, seed: int, skips: Skips) -> None:
        """Draw the table: uniform tokens below ``vocabulary``."""
        self.sequence_length = sequence_length
        self.skips = skips
        generator = torch.Generator().manual_seed(seed)
        rows = max(1, TOKENS // (sequence_length + 1))
        self._table = torch.randint(vocabulary, (rows, sequence_length + 1), generator=generator)

    def samples(self, first: int, count: int) -> Tensor:
        """Return the samples of cursors [first, first + count)."""
        place = self.skips.number(first) % len(self._table)
        if place + count <= len(self._table):
            return self._table[place : place + count]
        return self._table[(place + torch.arange(count)) % len(self._table)]

    def documents(self, first: int, count: int) -> Tensor:
        """Each sample is one document."""
        return torch.zeros(count, self.sequence_length + 1, dtype=torch.int64)

    def state(self, cursor: int) -> dict[str, Any]:
        """Return where a cursor stands."""
        return {"cursor": cursor, "sample": self.skips.number(cursor), "sources": []}
