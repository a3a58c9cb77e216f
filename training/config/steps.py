"""The steps of a stage: where they start from, and of each its batch, learning rate and phase."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

PhaseName = Literal["train", "replay", "canary", "probe"]
ScheduleName = Literal["constant", "cosine", "wsd"]


@dataclass(frozen=True)
class Schedule:
    """Shape of the learning rate over all steps: linear warm-up, then constant, a cosine, or stable and decay.

    ``wsd`` (warm-up, stable, decay: Hu et al. 2024, MiniCPM) stays at its peak until ``decay_steps`` before the end and
    goes down as 1 - sqrt(part of the decay done), which ended lower than a straight line in Hägele et al. 2024,
    arXiv:2405.18392. Its stable part needs no planned end, so a ladder may be prolonged from before the decay.
    """

    kind: ScheduleName = "constant"
    start_step: int = 0
    warmup_steps: int = 0
    total_steps: int = 1
    floor: float = 0.1  # part of the peak at which cosine and wsd end
    decay_steps: int = 0  # of wsd

    def factor(self, step: int) -> float:
        """Factor on the peak learning rate at ``step`` (steps count from 1; ``start_step`` is the last one before)."""
        done = step - self.start_step
        if done < self.warmup_steps:
            return done / self.warmup_steps
        if self.kind == "constant":
            return 1.0
        begin = self.warmup_steps if self.kind == "cosine" else self.total_steps - self.decay_steps
        part = min(1.0, max(0.0, (done - begin) / max(1, self.total_steps - begin)))
        left = 0.5 * (1.0 + math.cos(math.pi * part)) if self.kind == "cosine" else 1.0 - math.sqrt(part)
        return self.floor + (1.0 - self.floor) * left


@dataclass(frozen=True)
class Span:
    """Consecutive steps of one phase with one batch: steps ``first_step .. first_step + steps - 1`` (from 1)."""

    phase: PhaseName
    first_step: int
    steps: int
    batch_sequences: int
    learning_rate: float
    schedule: Schedule

    @property
    def last_step(self) -> int:
        """Number of the span's last step."""
        return self.first_step + self.steps - 1


@dataclass(frozen=True)
class Start:
    """Where the weights come from; ``step`` is the last one that the checkpoint has done (0 for scratch)."""

    kind: Literal["scratch", "continue", "weights"] = "scratch"
    checkpoint: str | None = None
    step: int = 0
