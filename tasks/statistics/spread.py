"""How far repeats lie apart, and how far counts may: standard deviations and Poisson counts with their intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Spread:
    """A standard deviation from ``n`` repeats, unbiased under normality, and its chi-square interval."""

    sd: float
    low: float
    high: float
    n: int


def spread(values: ArrayLike, *, confidence: float = 0.95) -> Spread:
    """Return the sd of independent ``values`` with its interval.

    s / c4(n) with c4(n) = sqrt(2/(n-1)) Gamma(n/2)/Gamma((n-1)/2) (Montgomery, Statistical Quality Control, 6th ed.,
    appendix VI); interval s sqrt((n-1)/chi2). Raises ValueError on fewer than 2 values or one not finite.
    """
    from scipy.special import gammaincinv

    x = np.asarray(values, dtype=float)
    if x.size < 2 or not np.isfinite(x).all():
        raise ValueError(f"{x.size} values, of which all must be finite and 2 are the least")
    s, half = float(x.std(ddof=1)), (x.size - 1) / 2
    c4 = math.exp(math.lgamma(half + 0.5) - math.lgamma(half)) / math.sqrt(half)
    ends = [2.0 * float(gammaincinv(half, p)) for p in ((1 + confidence) / 2, (1 - confidence) / 2)]
    low, high = (s * math.sqrt(2 * half / end) for end in ends)
    return Spread(s / c4, low, high, int(x.size))


def without(total: float, part: float) -> float:
    """Return the sd that is left of ``total`` when an independent ``part`` is taken out of its variance, 0 at least."""
    return math.sqrt(max(0.0, total**2 - part**2))


def poisson_interval(expected: float, probability: float = 0.9) -> tuple[int, int]:
    """Return the least and greatest count of a central interval that holds ``probability`` at least.

    Raises ValueError where ``expected`` is negative or not finite.
    """
    tail = (1 - probability) / 2
    return poisson_quantile(expected, tail), poisson_quantile(expected, 1 - tail)


def poisson_quantile(expected: float, p: float) -> int:
    """Return the smallest count k with P(N <= k) >= p; raise ValueError on a negative or infinite expectation."""
    from scipy.special import pdtr, pdtrik

    if not 0.0 <= expected < math.inf:
        raise ValueError(f"an expected count must be finite and 0 or more, not {expected}")
    if expected == 0.0 or float(pdtr(0, expected)) >= p:
        return 0
    near = math.floor(float(pdtrik(p, expected)))
    return next(k for k in (max(0, near - 1), near, near + 1, near + 2) if float(pdtr(k, expected)) >= p)
