"""One endless stream of samples whose order depends on a seed alone.

A job's place in it is one number, the cursor: a step takes the samples of cursors ``[cursor, cursor + B)``, whatever
``B`` and however many ranks share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from training.config import ConfigError
from training.config.data import Skips
from training.data.mixture import Mixture
from training.data.order import Order
from training.data.tokens import InMemory, Tokens


class Samples(Protocol):
    """What an engine reads: any samples at any time, the same ones whoever asks."""

    @property
    def sequence_length(self) -> int:
        """Tokens of a sample that are learnt from; each has one more."""

    def samples(self, first: int, count: int) -> Tensor:
        """Return the samples of cursors [first, first + count): int64 of shape [count, sequence_length + 1]."""


def share(count: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return the part ``[first, end)`` of ``count`` samples that ``rank`` takes: floor or ceil of count / ranks."""
    return rank * count // ranks, (rank + 1) * count // ranks


class Stream:
    """Sample ``i`` of one source: every window of it once an epoch, each epoch in an order of its own."""

    def __init__(self, text: Tensor | Tokens, sequence_length: int, seed: int | str, name: str = "") -> None:
        """Cut ``text`` into windows of ``sequence_length`` tokens, each with the one token that follows."""
        self.windows = (len(text) - 1) // sequence_length
        if self.windows < 1:
            what = "bytes" if isinstance(text, Tensor) else "tokens"
            of = f" of {name}" if name else ""
            raise ConfigError(f"data: {len(text)} {what}{of} hold no sequence of {sequence_length} tokens")
        self.sequence_length = sequence_length
        self._tokens = InMemory(text) if isinstance(text, Tensor) else text
        self._order = Order(self.windows, str(seed))

    def window_numbers(self, first: int, count: int) -> Tensor:
        """Return which windows the samples ``[first, first + count)`` are; int64 of shape [count]."""
        return self._order.numbers(first, count)

    def samples(self, first: int, count: int) -> Tensor:
        """Return samples ``[first, first + count)``: int64 of shape [count, sequence_length + 1]."""
        return self._tokens.cut(self.window_numbers(first, count) * self.sequence_length, self.sequence_length + 1)

    def documents(self, first: int, count: int) -> Tensor:
        """Return of the same tokens which document each is of; equal numbers in a row are one document.

        Raises ConfigError where nothing says where the source's documents end.
        """
        starts = self.window_numbers(first, count) * self.sequence_length
        found = self._tokens.documents(starts, self.sequence_length + 1)
        if found is None:
            raise ConfigError("data.documents: cut needs to know where documents end, and a source does not say it")
        return found


class MixedStream:
    """The samples of several sources by weight, without the ranges that are left out."""

    def __init__(self, streams: Sequence[Stream], weights: tuple[float, ...], skips: Skips, seed: int) -> None:
        """``streams`` are of one sequence length."""
        self.streams = tuple(streams)
        self.mixture = Mixture(weights, str(seed))
        self.skips = skips

    @property
    def sequence_length(self) -> int:
        """Tokens of a sample that are learnt from."""
        return self.streams[0].sequence_length

    def samples(self, first: int, count: int) -> Tensor:
        """Return the samples of cursors [first, first + count): int64 of shape [count, sequence_length + 1]."""
        return self._of_sources(first, count, Stream.samples)

    def documents(self, first: int, count: int) -> Tensor:
        """Return of the same tokens which document each is of; equal numbers in a row are one document."""
        return self._of_sources(first, count, Stream.documents)

    def state(self, cursor: int) -> dict[str, Any]:
        """Return where a cursor stands: the stream's next sample, and how far each source has been read."""
        number = self.skips.number(cursor)
        taken = [self.mixture.taken(index, number) for index in range(len(self.streams))]
        sources = [
            {"samples": samples, "epoch": samples // stream.windows, "window": samples % stream.windows}
            for samples, stream in zip(taken, self.streams, strict=True)
        ]
        return {"cursor": cursor, "sample": number, "sources": sources}

    def _of_sources(self, first: int, count: int, read: Any) -> Tensor:
        runs = [self._run(number, many, read) for number, many in self.skips.runs(first, count)]
        return runs[0] if len(runs) == 1 else torch.cat(runs or [self._run(0, 0, read)])

    def _run(self, number: int, count: int, read: Any) -> Tensor:
        """Return what lies at the stream's own numbers [number, number + count)."""
        if len(self.streams) == 1:
            return torch.as_tensor(read(self.streams[0], number, count))
        source = self.mixture.sources(number, count)
        found = torch.empty(count, self.sequence_length + 1, dtype=torch.int64)
        for index, stream in enumerate(self.streams):
            rows = (source == index).nonzero().flatten()
            if len(rows):
                # A source's samples come one behind the other, however far apart they lie in the stream.
                found[rows] = read(stream, self.mixture.taken(index, number), len(rows))
        return found


def cut(text: Tensor, windows: Tensor, sequence_length: int) -> Tensor:
    """Return windows of ``text`` by number: int64 of shape [windows, sequence_length + 1]."""
    return InMemory(text).cut(windows * sequence_length, sequence_length + 1)


def evenly(tokens: Tokens, sequences: int, sequence_length: int, of: str = "") -> Tensor:
    """Return sequences spread evenly over ``tokens``, the same ones each time: int64 [sequences, length + 1]."""
    windows = (len(tokens) - 1) // sequence_length
    if sequences > windows:
        share = f"{sequences} of {of}" if of else str(sequences)
        raise ConfigError(f"held_out.sequences: {share} is more than the {windows} that the held-out text has")
    starts = torch.arange(sequences) * windows // max(1, sequences) * sequence_length
    return tokens.cut(starts, sequence_length + 1)
