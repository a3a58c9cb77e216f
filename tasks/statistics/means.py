"""Means of correlated steps with their intervals, and the three-way decision on an interval.

scipy is imported where a quantile is needed: whoever only reads the gates' names should not wait for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Decision = Literal["pass", "fail", "more"]

LAUNCH_SD = 0.005  # relative sd from launch to launch; a judgement, until nightly history replaces it
SMALLEST_WINDOW = 20  # steps; fewer give no interval worth the name


@dataclass(frozen=True)
class Mean:
    """A mean with the interval that its correlated noise and the launch allow; ``df`` is Satterthwaite's."""

    value: float
    se: float
    df: float
    low: float
    high: float
    n: int
    batches: int

    @property
    def half_width(self) -> float:
        """Half the interval, relative to the value."""
        return (self.high - self.low) / 2 / abs(self.value)


def t_quantile(p: float, df: float) -> float:
    """Quantile of Student's t; infinite ``df`` is the normal."""
    from scipy.special import ndtri, stdtrit

    return float(ndtri(p)) if math.isinf(df) else float(stdtrit(df, p))


def warm_up(values: ArrayLike, *, at_least: int = 10) -> int:
    """Steps to drop: max(``at_least``, first t whose 10-step median is within 2% of the final half's median).

    The truncation rule of GATES section 3; a median of 10 tolerates 4 slow steps, so they go too. Raises ValueError
    where fewer than 20 values are given.
    """
    y = np.asarray(values, dtype=float)
    if y.size < SMALLEST_WINDOW:
        raise ValueError(f"{y.size} steps are too few to find a warm-up in; {SMALLEST_WINDOW} are the least")
    settled = float(np.median(y[y.size // 2 :]))
    first = y.size // 2
    for at in range(0, y.size - 9, 1000):  # the level is mostly reached in the first thousand
        medians = np.median(np.lib.stride_tricks.sliding_window_view(y[at : at + 1009], 10), axis=1)
        inside = np.abs(medians / settled - 1.0) <= 0.02
        if inside.any():
            first = at + int(np.argmax(inside))
            break
    return max(at_least, first + 4 if first else 0)


def batch_length(n: int) -> int:
    """Steps in a batch: 20 where that gives 8 batches, 10 where that gives 6, else 5 (and a wide t pays for it)."""
    if n < SMALLEST_WINDOW:
        raise ValueError(f"{n} steps are too few for an interval; {SMALLEST_WINDOW} are the least")
    return 20 if n >= 160 else 10 if n >= 60 else 5


def batch_means(values: ArrayLike, *, confidence: float = 0.95, launch_sd: float = 0.0, launches: int = 1) -> Mean:
    """Mean of autocorrelated ``values`` (steps in order) with a two-sided t interval from non-overlapping batch means.

    se^2 = sd(z)^2/k + (launch_sd * mean)^2/launches (Law & Kelton, Simulation Modeling and Analysis, 9.5.3; GATES 3);
    degrees of freedom by Satterthwaite, the launch part counting as known. A last partial batch is left out of the
    interval, not of the mean. Raises ValueError on fewer than 20 values or a value that is not finite.
    """
    y = np.asarray(values, dtype=float)
    if not np.isfinite(y).all():
        raise ValueError(f"{int((~np.isfinite(y)).sum())} of {y.size} values are not finite")
    b = batch_length(y.size)
    k = y.size // b
    z = y[y.size - k * b :].reshape(k, b).mean(axis=1)
    mean, within, launch = float(y.mean()), float(z.var(ddof=1)) / k, (launch_sd * float(y.mean())) ** 2 / launches
    total = within + launch
    df = (k - 1) * (total / within) ** 2 if within > 1e-30 * total and within > 0 else math.inf
    half = t_quantile((1 + confidence) / 2, df) * math.sqrt(total)
    return Mean(mean, math.sqrt(total), df, mean - half, mean + half, y.size, k)


def ratio(a: Mean, b: Mean, *, confidence: float = 0.95) -> Mean:
    """a / b of two independent positive means by the delta method on logarithms, with Satterthwaite's df."""
    parts = np.array([(a.se / a.value) ** 2, (b.se / b.value) ** 2])
    total = float(parts.sum())
    spread = float((parts**2 / np.array([a.df, b.df])).sum())
    df = total**2 / spread if spread > 0 else math.inf
    value = a.value / b.value
    half = t_quantile((1 + confidence) / 2, df) * math.sqrt(total)
    return Mean(
        value,
        value * math.sqrt(total),
        df,
        value * math.exp(-half),
        value * math.exp(half),
        a.n,
        min(a.batches, b.batches),
    )


def inverse(mean: Mean, scale: float) -> Mean:
    """``scale`` / mean: from seconds a step to tokens a second; the interval's ends change places."""
    value = scale / mean.value
    low = scale / mean.high
    high = scale / mean.low if mean.low > 0 else math.inf
    return Mean(value, value * mean.se / abs(mean.value), mean.df, low, high, mean.n, mean.batches)


def decide(low: float, high: float, limit: float, *, better: Literal["higher", "lower"] = "higher") -> Decision:
    """Three-way decision on an interval: all of it on the good side, all on the bad side, or more data (GATES 7.1)."""
    if not all(math.isfinite(v) for v in (low, high, limit)):
        raise ValueError(f"interval {low:g}..{high:g} against {limit:g}: a number is not finite")
    if better == "lower":
        low, high, limit = -high, -low, -limit
    return "pass" if low >= limit else "fail" if high < limit else "more"


def paired_difference(a: ArrayLike, b: ArrayLike, *, confidence: float = 0.95) -> Mean:
    """Mean of a - b, step by step: what the two share cancels; batch means carry the autocorrelation of the rest."""
    return batch_means(np.asarray(a, dtype=float) - np.asarray(b, dtype=float), confidence=confidence)


def noise_left(a: ArrayLike, b: ArrayLike) -> float:
    """Part of the step-to-step noise that pairing does not cancel: about 0 on equal samples, about 1 on different ones.

    sd of the differences of d = a - b over the sd that independent series would show; differencing (von Neumann 1941)
    removes any trend, so a falling loss does not pass for agreement.
    """
    x, y = np.diff(np.asarray(a, dtype=float)), np.diff(np.asarray(b, dtype=float))
    apart = float((x**2).mean() + (y**2).mean())
    if not apart > 0:
        raise ValueError("neither series moves at all")
    return math.sqrt(float(((x - y) ** 2).mean()) / apart)
