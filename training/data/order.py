"""In which order the windows of a source are read: each once an epoch, every epoch in an order of its own.

Up to 4 million windows the order is a permutation drawn whole (32 MiB, 50 ms). Beyond, it is computed window by
window: a Feistel network (Luby and Rackoff 1988) is a bijection of the numbers below a power of four, and walking on
until a number falls below ``windows`` makes it one of those (cycle walking; Black and Rogaway 2002). It costs no memory
and no more at the trillionth sample than at the first.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

DRAWN_WHOLE_WINDOWS = 2**22
_ROUNDS = 6
_MASK = 2**32 - 1
_MULTIPLIER = 0x45D9F3B  # odd and below 2^27, so that its product with 32 bits stays inside of int64


class Order:
    """Which window each sample of an endless stream over one source is."""

    def __init__(self, windows: int, key: str, drawn_whole: int = DRAWN_WHOLE_WINDOWS) -> None:
        """``key`` decides the orders of all epochs."""
        self.windows = windows
        self.key = key
        self._whole = windows <= drawn_whole
        self._drawn: tuple[int, Tensor] | None = None

    def numbers(self, first: int, count: int) -> Tensor:
        """Return the windows of samples [first, first + count); int64 of shape [count]."""
        parts = []
        while count > 0:
            epoch, place = divmod(first, self.windows)
            here = min(count, self.windows - place)
            parts.append(self._drawn_at(epoch, place, here) if self._whole else self._computed(epoch, place, here))
            first, count = first + here, count - here
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)

    def _drawn_at(self, epoch: int, place: int, count: int) -> Tensor:
        # Held in a variable of its own: another thread, an epoch further on, may replace what is kept.
        drawn = self._drawn
        if drawn is None or drawn[0] != epoch:
            generator = torch.Generator().manual_seed(int.from_bytes(self._digest(epoch)[:7], "big"))
            drawn = self._drawn = epoch, torch.randperm(self.windows, generator=generator)
        return drawn[1][place : place + count]

    def _computed(self, epoch: int, place: int, count: int) -> Tensor:
        digest = self._digest(epoch)
        keys = [int.from_bytes(digest[4 * n : 4 * n + 4], "big") for n in range(_ROUNDS)]
        half = max(1, ((self.windows - 1).bit_length() + 1) // 2)
        found = _feistel(torch.arange(place, place + count), keys, half)
        while bool((beyond := found >= self.windows).any()):
            found[beyond] = _feistel(found[beyond], keys, half)
        return found

    def _digest(self, epoch: int) -> bytes:
        return hashlib.sha256(f"{self.key}/{epoch}".encode()).digest()


def _feistel(numbers: Tensor, keys: list[int], half: int) -> Tensor:
    """Permute the numbers below 2^(2 half): each round turns one half by a hash of the other."""
    mask = (1 << half) - 1
    left, right = numbers >> half, numbers & mask
    for key in keys:
        x = ((right ^ key) * _MULTIPLIER) & _MASK
        x = ((x ^ (x >> 16)) * _MULTIPLIER) & _MASK
        left, right = right, left ^ ((x ^ (x >> 16)) & mask)
    return (left << half) | right
