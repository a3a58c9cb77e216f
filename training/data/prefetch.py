"""The next steps' samples are made ready while a step computes, by threads: torch cuts without Python's lock.

Samples are a function of their cursors alone, so no thread can change their order. What a process will ask for is
foretold from what it asked for last: its share of a step. A wrong guess costs time, never a sample: what was not made
ready is cut on the spot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

from torch import Tensor

from training.data.stream import Samples


@dataclass
class _Step:
    """One step: its samples, and the run of them that this process asks for."""

    cursor: int
    batch: int
    asked: list[tuple[int, int]] = field(default_factory=list)  # [first, end), from the cursor on
    ready: Future[Tensor] | None = None
    ready_from: int = 0  # the cursor of the first sample that is made ready
    ready_end: int = 0


class Prefetcher:
    """A stream whose next steps are ready when they are asked for; it holds at most ``ahead`` steps' shares."""

    def __init__(self, stream: Samples, ahead: int, workers: int = 1) -> None:
        """``ahead`` steps are made ready, none before :meth:`follow` has said which there are."""
        self._stream, self._ahead = stream, ahead
        self._coming: Iterator[tuple[int, int]] = iter(())
        self._steps: list[_Step] = []  # the one that runs, then those made ready
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix="data") if ahead > 0 else None
        self.late = 0  # requests that had not been foretold

    @property
    def sequence_length(self) -> int:
        """Tokens of a sample that are learnt from."""
        return self._stream.sequence_length

    def samples(self, first: int, count: int) -> Tensor:
        """Return the samples of cursors [first, first + count); what went wrong in a thread is raised here."""
        step = self._enter(first, count) if self._workers else None
        if step is None:
            return self._stream.samples(first, count)
        step.asked.append((first - step.cursor, first - step.cursor + count))
        if step.ready is None or not step.ready_from <= first <= first + count <= step.ready_end:
            self.late += 1
            return self._stream.samples(first, count)
        return step.ready.result()[first - step.ready_from : first - step.ready_from + count]

    def follow(self, steps: Iterable[tuple[int, int]]) -> None:
        """Make ready from now on what these steps will ask for: (cursor, batch) of each in turn."""
        self._coming = iter(steps)

    def close(self) -> None:
        """Drop what nobody will ask for, and return when no thread is left."""
        if self._workers:
            self._workers.shutdown(wait=True, cancel_futures=True)
        self._steps, self._coming, self._workers = [], iter(()), None

    def _enter(self, first: int, count: int) -> _Step | None:
        """Return the step that a request is of, having gone on to it where it is a later one."""
        if not self._steps:
            self._take(1)
        while self._steps and first >= self._steps[0].cursor + self._steps[0].batch:
            over = self._steps.pop(0)
            self._take(1 + self._ahead - len(self._steps))
            self._foretell(over)
        if not self._steps or first < self._steps[0].cursor:
            return None
        return self._steps[0]

    def _take(self, count: int) -> None:
        self._steps += [_Step(cursor, batch) for cursor, batch in islice(self._coming, max(0, count))]

    def _foretell(self, last: _Step) -> None:
        """Have made ready, for each step that is not yet, this process's share of it: what it had of the last one."""
        if not last.asked or self._workers is None:
            return
        low, high = min(first for first, _ in last.asked), max(end for _, end in last.asked)
        for step in self._steps:
            if step.ready is not None:
                continue
            begin, end = low, high
            if step.batch != last.batch:
                # A share's ends are floors of its fraction of the batch: this much is sure to hold them.
                begin = low * step.batch // last.batch
                end = min(step.batch, -(-(high + 1) * step.batch // last.batch))
            step.ready_from, step.ready_end = step.cursor + begin, step.cursor + end
            step.ready = self._workers.submit(self._stream.samples, step.ready_from, end - begin)


def coming(steps: Iterable[int], cursor: int) -> Iterator[tuple[int, int]]:
    """Yield (cursor, batch) of steps with these batches, the first of which begins at ``cursor``."""
    for batch in steps:
        yield cursor, batch
        cursor += batch
