"""Which precision the matrices multiply in, and the loss scale that fp16 needs; weights and moments stay float32.

Gradients below 6e-8 vanish in fp16 and those above 65,504 overflow, so the loss is multiplied by a factor that moves
them between (Micikevicius et al. 2018). Gradients are divided by it again in float32, inside the optimizer's kernel.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from training.config import ConfigError, LossScale, TrainConfig

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def refuse_impossible(config: TrainConfig) -> None:
    """Raise ConfigError for numbers with which neither a loss scale nor the optimizer could work."""
    for key, said in (("loss_scale", config.loss_scale), ("optimizer", config.optimizer)):
        if problems := said.problems():
            raise ConfigError(f"{key}.{problems[0]}")


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context for forward passes.

    On a CPU without AMX a step in bf16 takes 3 times as long as in float32, in fp16 42 times: there to be tested.
    """
    half = _HALF.get(precision)
    return nullcontext() if half is None else torch.autocast(device.type, half)


class LossScaler:
    """The factor on the loss, and what it remembers: host numbers, since every step's outcome is read there anyway."""

    def __init__(self, settings: LossScale, precision: str) -> None:
        """Start with the initial scale; in a precision other than fp16 the scale is 1 for good."""
        self.settings, self.active = settings, precision == "fp16"
        # Of every precision in the checkpoint, so that a stage in fp16 may go on from one in bf16.
        self._memory = torch.tensor([settings.initial, 0.0, 0.0], dtype=torch.float64)

    @property
    def scale(self) -> float:
        """The factor on the loss of the coming step."""
        return float(self._memory[0]) if self.active else 1.0

    @property
    def skipped_in_a_row(self) -> int:
        """Steps skipped since the last one that moved the weights."""
        return int(self._memory[2])

    def advance(self, finite: bool) -> None:
        """Take one more step, whose gradients were finite or not, and move the scale."""
        if not self.active:
            return
        scale, good, skipped = self._memory.tolist()
        rule = self.settings
        if not finite:
            scale, good, skipped = max(rule.floor, scale * rule.backoff), 0, skipped + 1
        else:
            good, skipped = good + 1, 0
            if good == rule.growth_steps:
                grown = float(torch.tensor(scale * rule.growth))  # as float32, which the scaled loss is
                scale, good = (grown if grown < float("inf") else scale), 0
        self._memory.copy_(torch.tensor([scale, good, skipped], dtype=torch.float64))

    def storm(self, scale: float) -> str | None:
        """Say why no smaller scale will help, if so; ``scale`` is that of the step just skipped."""
        rule = self.settings
        if scale <= rule.floor:
            return f"overflowed at a loss scale of {scale:g}, its floor"
        if self.skipped_in_a_row >= rule.storm_steps:
            return f"overflowed {self.skipped_in_a_row} times in a row, last at a loss scale of {scale:g}"
        return None

    def state(self) -> dict[str, Tensor]:
        """Return the tensor a checkpoint must hold; loading writes into it in place."""
        return {"loss_scale": self._memory}
