"""Settings of the dynamic loss scale that training in fp16 needs."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class LossScale:
    """How the factor on an fp16 loss moves: up while gradients stay finite, down where they overflow.

    Micikevicius et al. 2018, section 3.2; the rule is that of ``torch.amp.GradScaler``, with a floor. Powers of two
    change exponents only, so scaling rounds nothing.
    """

    initial: float = 8192.0
    growth: float = 2.0  # factor after growth_steps finite steps in a row
    growth_steps: int = 2000
    backoff: float = 0.5  # factor after a step whose gradients overflowed, which is skipped
    floor: float = 1.0  # below it the loss would be made smaller, not larger: an overflow there is no matter of scale
    # Skipped steps in a row after which training ends: 16 halvings are a factor of 65,536, all of fp16 above 1.
    storm_steps: int = 16

    def problems(self) -> list[str]:
        """Return what is wrong with the numbers, each as a clause that begins with its key."""
        rules = {
            f"floor: {self.floor:g} is not above 0": not self.floor > 0,
            f"initial: {self.initial:g} is below the floor, {self.floor:g}": self.initial < self.floor,
            f"initial: {self.initial:g} is not finite": not math.isfinite(self.initial),
            f"growth: {self.growth:g} is not above 1": not 1 < self.growth < math.inf,
            f"growth_steps: {self.growth_steps} is less than 1": self.growth_steps < 1,
            f"backoff: {self.backoff:g} is not between 0 and 1": not 0 < self.backoff < 1,
            f"storm_steps: {self.storm_steps} is less than 1": self.storm_steps < 1,
        }
        return [text for text, wrong in rules.items() if wrong]
