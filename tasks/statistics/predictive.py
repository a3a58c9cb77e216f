"""What is foretold of a number: a mixture of t distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tasks.statistics.means import Array

TAILS = 4.0  # degrees of freedom of the predictive t


@dataclass(frozen=True)
class Predictive:
    """A mixture of location-scale t distributions, on whatever scale its maker says (``df`` may be infinite)."""

    weights: Array
    centres: Array
    scales: Array
    df: float = 4.0

    def above(self, value: float) -> float:
        """Probability of at least ``value``."""
        from scipy.special import ndtr, stdtr

        z = (self.centres - value) / self.scales
        return float((self.weights * (ndtr(z) if math.isinf(self.df) else stdtr(self.df, z))).sum())

    def quantile(self, p: float) -> float:
        """Value below which the share ``p`` lies, by bisection."""
        reach = 1e3 * float(self.scales.max())
        low, high = float(self.centres.min()) - reach, float(self.centres.max()) + reach
        return bisect(lambda v: 1.0 - self.above(v) - p, low, high)


def bisect(function: Callable[[float], float], low: float, high: float) -> float:
    """Root of an increasing function between ``low`` and ``high`` to the last bits."""
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return 0.5 * (low + high)
