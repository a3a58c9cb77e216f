"""What a job reads: sources and their weights, how documents are treated, which samples are left out. No torch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from training.config.errors import ConfigError

Range = tuple[int, int]
SYNTHETIC = "synthetic"  # the word for random tokens, with which the fingerprint of such data begins


@dataclass(frozen=True)
class DataSource:
    """``stdlib``, ``synthetic``, a folder of text or of tokens, a ``.bin`` of tokens, or a pattern of such."""

    path: str
    weight: float = 1.0  # of the sources together, this part of all samples
    held_out: str | None = None  # the held-out `.bin` of token files that were not made by `scaleup tokenize`
    dtype: Literal["uint16", "uint32"] | None = None  # of a flat `.bin` with no index beside it


@dataclass(frozen=True)
class Data:
    """All that decides which tokens a sample is made of, and how they are read."""

    sources: tuple[DataSource, ...]
    documents: Literal["packed", "cut"] = "packed"  # cut: no token is predicted from, or attends to, another document;
    # the data side offers ids, positions, weights and mask, no engine takes them yet, so the trainer refuses it
    skip_samples: tuple[Range, ...] = ()  # [first, end) in the stream's own numbers, ascending; left out
    verify: Literal["sampled", "whole"] = "sampled"  # how token files are compared with their index at the start
    prefetch_steps: int = 2  # steps whose samples are made ready while earlier ones compute; 0: on the spot. One text
    # that lies in memory is always cut on the spot, which is faster

    def __post_init__(self) -> None:
        """Refuse what no stream could be made of."""
        if not self.sources:
            raise ConfigError("data.sources: there is none; write stdlib, or a list of {path, weight}")
        for index, source in enumerate(self.sources):
            if not 0 < source.weight < float("inf"):
                raise ConfigError(f"data.sources.{index}.weight: {source.weight!r} is no positive number")
        if len(self.sources) > 1 and any(source.path == SYNTHETIC for source in self.sources):
            raise ConfigError("data.sources: synthetic samples stand alone; remove the other sources")
        if self.prefetch_steps < 0:
            raise ConfigError(f"data.prefetch_steps: {self.prefetch_steps} is negative; 0 reads on the spot")
        Skips(self.skip_samples)

    @classmethod
    def of(cls, said: str | Data) -> Data:
        """Return the orders that a single word stands for: one source, all of its samples."""
        return said if isinstance(said, Data) else cls((DataSource(said),))


class Skips:
    """Which sample of the stream a cursor means, where ranges are left out.

    A cursor counts the samples taken: cursor c takes the c-th sample of the stream that lies in no range. So a range
    moves no other sample out of its order, and one that lies ahead of a checkpoint changes nothing that led to it.
    """

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        """Raise ConfigError unless the ranges [first, end) are not empty, ascend and do not touch."""
        end_before = -1
        for index, (first, end) in enumerate(ranges):
            if not 0 <= first < end:
                raise ConfigError(f"data.skip_samples.{index}: [{first}, {end}) is empty; first must be below end")
            if first <= end_before:
                raise ConfigError(f"data.skip_samples.{index}: {first} must lie beyond {end_before}, the end before it")
            end_before = end
        self.ranges = ranges
        self._skipped = [0, *accumulate(end - first for first, end in ranges)]
        # The cursor at which each range is met.
        self._met = [first - skipped for (first, _), skipped in zip(ranges, self._skipped, strict=False)]

    def number(self, cursor: int) -> int:
        """Return the number in the stream of the sample that a cursor takes, in O(log ranges)."""
        return cursor + self._skipped[bisect_right(self._met, cursor)]

    def runs(self, cursor: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield ``(first number, how many)`` of the unbroken runs that samples [cursor, cursor + count) make up."""
        while count > 0:
            passed = bisect_right(self._met, cursor)
            until = self._met[passed] if passed < len(self._met) else cursor + count
            here = min(count, until - cursor)
            yield cursor + self._skipped[passed], here
            cursor, count = cursor + here, count - here

    def before(self, cursor: int) -> tuple[Range, ...]:
        """Return the ranges, or parts of them, that the samples before a cursor have passed over."""
        # Where the last sample before the cursor lies: a range right behind it has not been passed yet.
        position = self.number(cursor - 1) + 1 if cursor > 0 else 0
        return tuple((first, end) for first, end in self.ranges if end <= position)


def skipped_otherwise(was: tuple[Range, ...], now: tuple[Range, ...], cursor: int) -> str | None:
    """Say how the samples behind a cursor differ under two sets of ranges; None where they are the same ones."""
    before, after = Skips(was).before(cursor), Skips(now).before(cursor)
    if before == after:
        return None
    return (
        f"skip_samples: the {cursor} samples before it left out {_words(before)}, and the orders now say "
        f"{_words(after)}; a range must lie beyond sample {Skips(was).number(cursor)}, where it goes on"
    )


def _words(ranges: tuple[Range, ...]) -> str:
    return ", ".join(f"[{first}, {end})" for first, end in ranges) or "none"
