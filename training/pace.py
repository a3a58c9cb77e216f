"""Checkpoints by the clock: all processes must agree on the step, though each has a clock of its own."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from training.processes import World

_FIRST_LOOK_STEPS = 5  # steps until the first process knows how long a step takes


class Pace:
    """Says when a checkpoint is due by time.

    The first process's clock decides. It is asked at steps that all know beforehand, each halfway to where the
    interval would end at the pace so far, so a step needs no collective and one that slows down is noticed in time.
    """

    def __init__(self, minutes: float | None, world: World, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the first interval; without ``minutes`` nothing is ever due."""
        self._interval = None if minutes is None else 60 * minutes
        self._world, self._clock = world, clock
        self._began = self._seen = clock()
        self._step: int | None = None  # at which the clock was last asked
        self._look = 0

    def due(self, step: int) -> bool:
        """Whether a checkpoint is due after ``step``; every process calls it after each step, with one answer."""
        if self._interval is None:
            return False
        if self._step is None:
            self._step, self._look = step, step + _FIRST_LOOK_STEPS
        if step < self._look:
            return False
        now = self._clock()
        due = now - self._began >= self._interval
        if due:
            self._began = now
        step_seconds = (now - self._seen) / max(1, step - self._step)
        remaining = self._began + self._interval - now
        ahead = max(1, int(remaining / 2 / max(step_seconds, 1e-9)))
        said = torch.tensor([float(due), ahead], dtype=torch.float64, device=self._world.device)
        if not self._world.first:
            said.zero_()
        self._world.sum(said)
        if said[0] > 0:
            self._began = now
        self._step, self._seen, self._look = step, now, step + int(said[1])
        return bool(said[0] > 0)
