"""From gradients to new weights: norm, clipping, the optimizer's step, or no step where they are not finite."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from training.config import TrainConfig
from training.gradients import Placed
from training.optimizer import AdamW, clip
from training.processes import World


@dataclass(frozen=True)
class Update:
    """What became of a step's gradients."""

    grad_norm: float  # global, before clipping; of unscaled gradients
    learning_rate: float
    done: bool  # False: the weights stayed as they were


class Updater:
    """The optimizer and all that decides whether and how far it moves."""

    def __init__(self, placed: Placed, world: World, config: TrainConfig) -> None:
        """Start with moments of zero."""
        self.placed, self.world, self.config = placed, world, config
        self.optimizer = AdamW(placed.parameters, config.optimizer)

    @property
    def loss_scale(self) -> float:
        """The factor that gradients carry."""
        return 1.0

    def update(self, learning_rate: float) -> Update:
        """Move the weights by the gradients that they carry; without finite ones they stay."""
        grad_norm = clip(self.placed, self.world, self.config.optimizer.clip)
        finite = math.isfinite(grad_norm)
        if finite:
            self.optimizer.step(learning_rate)
        return Update(grad_norm, learning_rate, done=finite)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors a checkpoint must hold, under flat names; loading writes into them in place."""
        return {f"optimizer.{name}": tensor for name, tensor in self.optimizer.state().items()}
