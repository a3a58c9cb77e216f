"""What a stream cuts its samples from: tokens by place, wherever they lie."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor


class Tokens(Protocol):
    """A long row of tokens."""

    def __len__(self) -> int:
        """How many there are."""

    def cut(self, starts: Tensor, width: int) -> Tensor:
        """Return ``width`` tokens from each start on: int64 of shape [starts, width]."""

    def documents(self, starts: Tensor, width: int) -> Tensor | None:
        """Return of the same tokens how many documents end before each, int64 [starts, width]; None: not known."""


class InMemory:
    """Tokens that are a tensor of unsigned bytes or of int64, and that know of no documents."""

    def __init__(self, tokens: Tensor) -> None:
        """Keep the tensor, shape [tokens]."""
        self._tokens = tokens

    def __len__(self) -> int:
        """How many tokens there are."""
        return len(self._tokens)

    def cut(self, starts: Tensor, width: int) -> Tensor:
        """Return ``width`` tokens from each start on."""
        # Overlapping rows that are no copy: one index a sample and not one a token.
        return self._tokens.unfold(0, width, 1).index_select(0, starts).to(torch.int64)

    def documents(self, starts: Tensor, width: int) -> Tensor | None:
        """Nothing says where documents end."""
        return None


class Joined:
    """Several rows of tokens, one behind the other; what is cut may begin in one and end in the next."""

    def __init__(self, parts: Sequence[Tokens]) -> None:
        """Keep the parts in their order."""
        self.parts = tuple(parts)
        self._firsts = [0, *accumulate(len(part) for part in self.parts)]

    def __len__(self) -> int:
        """How many tokens there are."""
        return self._firsts[-1]

    def cut(self, starts: Tensor, width: int) -> Tensor:
        """Return ``width`` tokens from each start on."""
        return torch.stack([self._row(start, width) for start in starts.tolist()]) if len(starts) else _none(width)

    def documents(self, starts: Tensor, width: int) -> Tensor | None:
        """Return the documents' numbers, counted on from part to part; the end of a part ends a document."""
        rows = [self._document_row(start, width) for start in starts.tolist()]
        known = [row for row in rows if row is not None]
        if len(known) < len(rows):
            return None
        return torch.stack(known) if known else _none(width)

    def _pieces(self, start: int, width: int) -> list[tuple[int, Tensor, int]]:
        """Return ``(part, start in it, width)`` of the pieces that lie in one part each."""
        pieces = []
        while width > 0:
            part = bisect_right(self._firsts, start) - 1
            here = min(width, self._firsts[part + 1] - start)
            pieces.append((part, torch.tensor([start - self._firsts[part]]), here))
            start, width = start + here, width - here
        return pieces

    def _row(self, start: int, width: int) -> Tensor:
        return torch.cat([self.parts[part].cut(at, here)[0] for part, at, here in self._pieces(start, width)])

    def _document_row(self, start: int, width: int) -> Tensor | None:
        rows: list[Tensor] = []
        for part, at, here in self._pieces(start, width):
            found = self.parts[part].documents(at, here)
            if found is None:
                return None
            # Only differences mean anything, so it is enough that a new part goes on with a number of its own.
            rows.append(found[0] - found[0][0] + rows[-1][-1] + 1 if rows else found[0])
        return torch.cat(rows)


def _none(width: int) -> Tensor:
    return torch.empty(0, width, dtype=torch.int64)
