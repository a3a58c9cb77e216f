"""Several sources in one stream: sample n is of one source, and is that source's i-th; both are computed from n alone.

Sample n falls at ``(phase + n * STRIDE) mod 2^32`` on a ring on which each source has an arc as long as its weight.
STRIDE / 2^32 is the golden ratio, whose multiples leave the smallest gaps (a Kronecker sequence; Niederreiter 1992), so
after any number of samples a source has had its share to within a few samples, and after 2^32 exactly. How often an
arc was hit among the first n samples is a sum of floors, which Euclid's algorithm finds in O(log n): a cursor deep in
the stream opens as fast as one at its start.
"""

from __future__ import annotations

import hashlib
from itertools import accumulate

import torch
from torch import Tensor

from training.config import ConfigError

RING = 2**32
STRIDE = 2654435769  # the odd number next to 2^32 / golden ratio


class Mixture:
    """Deals the samples of a stream out to sources by weight."""

    def __init__(self, weights: tuple[float, ...], key: str) -> None:
        """Give each source its arc; raise ConfigError for a weight that is less than one sample in 2^32."""
        total = sum(weights)
        self.edges = [0, *(round(RING * part / total) for part in accumulate(weights))]
        self.phase = int.from_bytes(hashlib.sha256(f"{key}/mixture".encode()).digest()[:4], "big")
        for index, (low, high) in enumerate(zip(self.edges, self.edges[1:], strict=False)):
            if low == high:
                raise ConfigError(f"data.sources.{index}.weight: {weights[index]:g} of {total:g} is never read")

    def taken(self, source: int, samples: int) -> int:
        """Return how many of the stream's first samples are of a source, in O(log samples)."""
        return self._below(self.edges[source + 1], samples) - self._below(self.edges[source], samples)

    def sources(self, first: int, count: int) -> Tensor:
        """Return which source each of the samples [first, first + count) is of; int64 of shape [count]."""
        begin = (self.phase + first * STRIDE) % RING
        places = (begin + torch.arange(count) * STRIDE) % RING
        return torch.bucketize(places, torch.tensor(self.edges[1:]), right=True)

    def _below(self, edge: int, samples: int) -> int:
        """Return how many of the first samples fall below an edge."""
        above = _floor_sum(samples, STRIDE, self.phase + RING - edge) - _floor_sum(samples, STRIDE, self.phase)
        return samples - above


def _floor_sum(count: int, slope: int, offset: int) -> int:
    """Return the sum over i < count of floor((slope i + offset) / RING), exactly, by Euclid's algorithm."""
    total, modulus = 0, RING
    while count > 0:
        total += (count - 1) * count // 2 * (slope // modulus) + count * (offset // modulus)
        slope, offset = slope % modulus, offset % modulus
        count, offset = divmod(slope * count + offset, modulus)
        slope, modulus = modulus, slope
    return total
