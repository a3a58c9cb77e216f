"""The gradient-noise scale: the batch at which noise and signal of a gradient weigh the same (McCandlish et al. 2018).

From the squared norms of the mean gradient at two batch sizes, b and B, appendix A.1 of arXiv:1812.06162 has unbiased
estimates |G|^2 = (B |G_B|^2 - b |G_b|^2) / (B - b) of the signal and tr S = (|G_b|^2 - |G_B|^2) / (1/b - 1/B) of the
noise of one sequence. Both are very noisy, so each is smoothed on its own and their ratio comes last. It foretells the
critical batch only up to its order (Merrill et al. 2025, arXiv:2505.23971): recorded, never gated.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from training.gradients import SmallBatch

MEMORY_STEPS = 100  # of the averages: half of their weight lies on the last 69 steps, after the first 100


class GradientNoise:
    """Averages of the squared signal and of the noise over steps; they do not depend on a step's batch."""

    def __init__(self) -> None:
        """Start knowing nothing; zeros weigh on both averages alike, so their ratio needs no correction."""
        self._averages = torch.zeros(2, dtype=torch.float64)

    def see(self, small: SmallBatch, batch: int, small_square: float, square: float) -> None:
        """Take a step's squared norms at the small batch and at the whole one; what is not finite is passed over."""
        if not small.sequences < batch or not math.isfinite(small_square + square):
            return
        signal = (batch * square - small.sequences * small_square) / (batch - small.sequences)
        noise = (small_square - square) / (1 / small.sequences - 1 / batch)
        seen = torch.tensor([signal, noise], dtype=torch.float64)
        self._averages.lerp_(seen, 1 / MEMORY_STEPS)

    @property
    def sequences(self) -> float | None:
        """The noise scale in sequences; None while the averages do not show one (nothing seen, or one is negative)."""
        signal, noise = self._averages.tolist()
        return noise / signal if signal > 0 and noise > 0 else None

    def state(self) -> dict[str, Tensor]:
        """Return the tensor a checkpoint must hold; loading writes into it in place."""
        return {"gradient_noise": self._averages}
