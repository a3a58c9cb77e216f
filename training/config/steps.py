"""The steps of a stage: where they start from, and of each its batch, learning rate and phase."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

PhaseName = Literal["train", "replay", "canary", "probe"]


@dataclass(frozen=True)
class Schedule:
    """Shape of the learning rate over a stage: linear warm-up, then constant, or cosine down to ``floor``."""

    kind: Literal["constant", "cosine"] = "constant"
    start_step: int = 0
    warmup_steps: int = 0
    total_steps: int = 1
    floor: float = 0.1

    def factor(self, step: int) -> float:
        """Factor on the peak learning rate at ``step`` (steps count from 1; ``start_step`` is the last one before)."""
        done = step - self.start_step
        if done <= self.warmup_steps:
            return done / self.warmup_steps if self.warmup_steps else 1.0
        if self.kind == "constant":
            return 1.0
        part = min(1.0, (done - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * part))


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
