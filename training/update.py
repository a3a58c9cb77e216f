"""From gradients to new weights: norm, clipping, the optimizer's step, or no step where they are not finite."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.config import TrainConfig
from training.gradients import Placed, SmallBatch
from training.noise import GradientNoise
from training.optimizer import AdamW, gradient_norm
from training.precision import LossScaler
from training.processes import TrainingError, World


@dataclass(frozen=True)
class Update:
    """What became of a step's gradients."""

    grad_norm: float  # global, before clipping; of unscaled gradients
    learning_rate: float
    done: bool  # False: the weights stayed as they were
    loss_scale: float | None = None  # that the gradients carried; None where a precision needs none
    gradient_noise_sequences: float | None = None  # None where it is not known

    def to_json(self) -> dict[str, Any]:
        """Return what the step's record says of it; what is not known is left out."""
        said: dict[str, Any] = {"grad_norm": self.grad_norm, "learning_rate": self.learning_rate}
        if self.loss_scale is not None:
            said |= {"loss_scale": self.loss_scale, "skipped_steps": int(not self.done)}
        if self.gradient_noise_sequences is not None:
            said["gradient_noise_sequences"] = self.gradient_noise_sequences
        return said


class Updater:
    """The optimizer and all that decides whether and how far it moves.

    In fp16 a step whose gradients overflow is skipped. Its samples are gone and the schedule goes on: a step's number
    alone says which samples and which learning rate it has, whatever overflowed before, so stages and resumed jobs
    still pair step by step. The optimizer's own count and its moments stay: they belong to updates, and there was none.
    """

    def __init__(self, placed: Placed, world: World, config: TrainConfig) -> None:
        """Start with moments of zero."""
        self.placed, self.world, self.config = placed, world, config
        self.optimizer = AdamW(placed.parameters, config.optimizer, config.model.rate_factor)
        self.scaler = LossScaler(config.loss_scale, config.precision)
        self.noise = GradientNoise()

    @property
    def loss_scale(self) -> float:
        """The factor that gradients carry."""
        return self.scaler.scale

    def update(self, learning_rate: float, batch: int, small: SmallBatch | None = None) -> Update:
        """Move the weights by the gradients of ``batch`` sequences; without finite ones they stay.

        All is put on the device before the host waits, once, for what became of it; beside this only engines wait, for
        the loss.
        """
        scale = self.scaler.scale
        norm = gradient_norm(self.placed, self.world) / scale
        divisor = (scale * (norm / self.config.optimizer.clip).clamp(min=1.0)).float()
        skip = divisor.isfinite().logical_not().float()
        self.optimizer.step(learning_rate, batch, divisor, skip)
        said = [norm, skip.double()] + ([small.square.to(norm)] if small else [])
        grad_norm, skipped, *small_squares = torch.stack(said).tolist()
        done = not skipped
        self.scaler.advance(done)
        if done:
            self.optimizer.count(batch)
        if small and done:
            self.noise.see(small, batch, small_squares[0] / scale**2, grad_norm**2)
        noise = self.noise.sequences if small else None
        return Update(grad_norm, learning_rate, done, scale if self.scaler.active else None, noise)

    def refuse_to_go_on(self, step: int, loss: float, update: Update) -> None:
        """Raise TrainingError where a step did not move the weights, and the next ones would not either."""
        if update.done:
            return
        if update.loss_scale is None or not math.isfinite(loss):  # no scale mends a loss that is itself not finite
            said = f"loss {loss}, gradient norm {update.grad_norm}; weights were not updated"
            raise TrainingError(f"step {step}: {said}")
        storm = self.scaler.storm(update.loss_scale)
        if storm is not None:
            kept = step - self.scaler.skipped_in_a_row
            raise TrainingError(
                f"step {step}: gradients {storm}; weights are those of step {kept}. Train in bf16, or go on from a "
                f"checkpoint before step {kept + 1} with a lower learning rate"
            )

    def state(self) -> dict[str, Tensor]:
        """Return the tensors a checkpoint must hold, under flat names; loading writes into them in place."""
        optimizer = {f"optimizer.{name}": tensor for name, tensor in self.optimizer.state().items()}
        return optimizer | self.scaler.state() | self.noise.state()
