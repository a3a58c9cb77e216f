"""Loss from tokens seen to tokens to come, batches as they were and will be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tasks.statistics.means import Array, t_quantile
from tasks.statistics.predictive import TAILS

SIGMA_RUN = 0.001  # nats; least run-to-run sd of a final loss (OLMo ladder reruns, GATES 2.2)


def critical_batch(tokens: float) -> tuple[float, float, float]:
    """Critical batch (tokens) after ``tokens``: low, middle, high (GATES 2.4).

    Anchored at 5.4 million tokens at 20 billion, a factor 2 each way; from there down or up the published laws
    disagree between D^.47 (Zhang 2024) and D^.79 (Step Law), and the middle is their geometric mean.
    """
    far = math.log(tokens / 20e9)
    laws = sorted(5.4e6 * math.exp(power * far) for power in (0.47, 0.79))
    return laws[0] / 2, math.sqrt(laws[0] * laws[1]), laws[1] * 2


def batch_shift(slope: float, batch: float, other: float, critical: tuple[float, float, float]) -> tuple[float, float]:
    """Loss at equal tokens with ``other`` tokens a batch minus with ``batch``, and its sd (GATES 2.4).

    E[L2 - L1] = s [ln(1 + B2/Bc) - ln(1 + B1/Bc)], s = -dL/dlnD; sd = |shift(low Bc) - shift(high Bc)| / 4.
    """
    shifts = [slope * (math.log1p(other / bc) - math.log1p(batch / bc)) for bc in critical]
    return shifts[1], abs(shifts[0] - shifts[2]) / 4


@dataclass(frozen=True)
class LossForecast:
    """A loss at later tokens: the middle of two fits, a 90% band, and the parts of its standard deviation."""

    median: float
    low: float
    high: float
    line: float  # what a line in ln tokens through the last doubling says: too low while the curve bends
    power: float  # what a power law with a floor says: too high where the floor is read off too early
    bend_sd: float  # sample sd of the two: they err together, so their mean is no better known than either
    batch_sd: float  # what the unknown critical batch makes of a changing batch
    fit_sd: float  # what scatter around the line makes of it
    points: int


def forecast_loss(step_tokens: ArrayLike, after: ArrayLike, loss: ArrayLike, planned: ArrayLike) -> LossForecast:
    """Extrapolate a loss curve to the end of the steps planned, batches as they were and will be.

    ``step_tokens`` and ``planned``: tokens of each step done and to come. ``loss`` was seen after ``after`` steps.
    Two fits in effective tokens stand for what is not known of the curve's bend, three critical batches for what is
    not known of the batch. No part of the band is tuned; t_4 covers that its sd is itself a guess. Raises ValueError
    where the last doubling of tokens holds fewer than 3 losses, or the last two fewer than 4.
    """
    done, y = np.asarray(step_tokens, dtype=float), np.asarray(loss, dtype=float)
    at, every = np.asarray(after, dtype=int), np.concatenate([done, np.asarray(planned, dtype=float)])
    at, y = at[at > 0], y[at > 0]
    fits = []
    for critical in critical_batch(float(done.sum())):
        x = effective_tokens(every, critical)
        fits.append((*line_in_logarithm(x[at - 1], y, float(x[-1])), power_law(x[at - 1], y, float(x[-1]))))
    line, fit_sd, power = fits[1]
    middles = [(fit[0] + fit[2]) / 2 for fit in fits]
    bend_sd, batch_sd = abs(line - power) / math.sqrt(2), abs(middles[0] - middles[2]) / 4
    reach = t_quantile(0.95, TAILS) * math.sqrt(bend_sd**2 + batch_sd**2 + fit_sd**2 + SIGMA_RUN**2)
    return LossForecast(
        middles[1], middles[1] - reach, middles[1] + reach, line, power, bend_sd, batch_sd, fit_sd, y.size
    )


def effective_tokens(tokens: ArrayLike, critical: float) -> Array:
    """Cumulative tokens, each step's divided by 1 + B/Bc: what they are worth at a small batch (GATES 2.4).

    E(B) = E_min (1 + B/Bc) turned round, so batches may change on the way. ``tokens`` are those of each step.
    """
    b = np.asarray(tokens, dtype=float)
    return np.asarray(np.cumsum(b / (1.0 + b / critical)))


def line_in_logarithm(x: Array, y: Array, target: float) -> tuple[float, float]:
    """Extrapolate a least-squares line in ln x through the last doubling of x; return it and its standard error."""
    last = x >= x[-1] / 2
    u, v = np.log(x[last]), y[last]
    if u.size < 3 or np.ptp(u) == 0:
        raise ValueError(f"the last doubling of tokens holds {u.size} losses; 3 are the least")
    sxx = float(((u - u.mean()) ** 2).sum())
    slope = float(((u - u.mean()) * v).sum()) / sxx
    far = math.log(target) - float(u.mean())
    left = v - v.mean() - slope * (u - u.mean())
    se = math.sqrt(float((left**2).sum()) / (u.size - 2) * (1 / u.size + far**2 / sxx))
    return float(v.mean()) + slope * far, se


def power_law(x: Array, y: Array, target: float) -> float:
    """Extrapolate y = E + A x^-a, E and A >= 0, by least squares through the last two doublings of x; a on a grid."""
    last = x >= x[-1] / 4
    if last.sum() < 4:
        raise ValueError(f"the last two doublings of tokens hold {int(last.sum())} losses; 4 are the least")
    z, v, powers = np.log(x[last] / x[-1]), y[last], np.linspace(0.02, 2.0, 100)
    basis = np.exp(-np.outer(powers, z))
    centred = basis - basis.mean(axis=1, keepdims=True)
    height = np.maximum((centred * v).sum(axis=1) / (centred**2).sum(axis=1), 0.0)
    floor = v.mean() - height * basis.mean(axis=1)
    through_zero = (basis * v).sum(axis=1) / (basis**2).sum(axis=1)
    height, floor = np.where(floor < 0, through_zero, height), np.maximum(floor, 0.0)
    best = int(np.argmin(((floor[:, None] + height[:, None] * basis - v) ** 2).sum(axis=1)))
    return float(floor[best] + height[best] * (target / x[-1]) ** -powers[best])
