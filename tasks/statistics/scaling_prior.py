"""How throughput a GPU falls with scale: a line whose slope is shrunk to a mixture, and a break beyond the fit.

ln(tokens/s/GPU) of a weakly scaled recipe is a line in log2(GPUs) plus launch noise (GATES 4.2). Two kinds of system
are told apart by the slope seen so far. Where communication stays *hidden* behind compute, slopes are small and lines
hold. Where it is *exposed*, slopes are steep, and with some chance the target lies below even that line: a break, which
only ever slows, by an exponentially distributed share. A break may also come from a network tier that nothing fitted
has crossed. All arrays hold one entry a case: some launches of one recipe and a target scale.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from tasks.statistics.means import Array
from tasks.statistics.predictive import TAILS

GPUS_PER_NODE = 8  # of all published systems used here; a cluster of other nodes says so
SUPERLINEAR = 1.05  # a GPU that does more than this among more GPUs: the smaller run was broken (GATES 4.2)
NOISE_WEIGHT = 4.0  # launches that the prior noise counts for against the scatter seen; a judgement
_STEPS = 6  # equally likely sizes by which the exponential drop of a break is represented
_DROPS = -np.log1p(-(np.arange(_STEPS) + 0.5) / _STEPS)
_DROPS = _DROPS / _DROPS.mean()


@dataclass(frozen=True)
class ScalingPrior:
    """What is believed of a system before its own launches; slopes are ln(throughput a GPU) per doubling of GPUs."""

    hidden_mean: float
    hidden_sd: float
    exposed_share: float
    exposed_mean: float
    exposed_sd: float
    break_chance: float  # that an exposed system falls off its line
    break_drop: float  # mean of that fall, in ln(throughput)
    tier_break: float  # chance of such a fall, for every system, where a network tier is crossed for the first time
    launch_sd: float  # of ln(throughput), from launch to launch and from point to line


@dataclass(frozen=True)
class Cases:
    """What the predictor knows of each case: sufficient statistics of its launches, and its target."""

    launches: Array
    centre: Array  # mean log2(GPUs)
    spread: Array  # sum of squares of log2(GPUs) around it
    slope: Array  # by least squares, never above 0: a GPU does no more among many than among few
    level: Array  # mean ln(throughput)
    residual: Array  # sum of squares around that line
    freedom: Array  # its degrees of freedom
    target: Array  # log2(GPUs)
    crossed: Array  # 1 where the target lies beyond a tier that no launch has crossed, else 0

    @classmethod
    def of(cls, cases: Iterable[tuple[Array, Array, float]], tiers: Sequence[float] = (GPUS_PER_NODE,)) -> Cases:
        """Sum up (log2 GPUs, ln throughput, log2 target) of each case; ``tiers`` are the sizes of node, pod, ..."""
        rows = [_sums(x, y, target, tiers) for x, y, target in cases]
        return cls(*np.array(rows, dtype=float).reshape(-1, len(fields(cls))).T)

    def take(self, rows: ArrayLike) -> Cases:
        """Return the cases of a mask or of indices."""
        return Cases(*(getattr(self, field.name)[np.asarray(rows)] for field in fields(self)))


def _sums(x: Array, y: Array, target: float, tiers: Sequence[float]) -> tuple[float, ...]:
    centre, level = float(x.mean()), float(y.mean())
    spread = float(((x - centre) ** 2).sum())
    free = float(((x - centre) * (y - level)).sum()) / spread if spread > 0 else 0.0
    slope = min(free, 0.0)
    residual = float(((y - level - slope * (x - centre)) ** 2).sum())
    freedom = x.size - 1 - (1 if free < 0 else 0)
    reached = 2.0 ** float(x.max()) * (1 + 1e-9)
    crossed = any(reached <= tier * (1 + 1e-6) < 2.0**target for tier in tiers)
    return x.size, centre, spread, slope, level, residual, max(freedom, 0), target, float(crossed)


def components(prior: ScalingPrior, cases: Cases) -> tuple[Array, Array, Array]:
    """Weights, centres and scales of the t mixture that foretells ln(throughput a GPU): a row a case.

    Normal regression with the slope's prior N(mean, sd^2) of each kind; the kinds weighed by how well they foretold
    the slope seen; the noise variance is (4 launch_sd^2 + residual) / (4 + its freedom), so points off their line, or
    above a level one, widen the forecast.
    """
    noise = (NOISE_WEIGHT * prior.launch_sd**2 + cases.residual) / (NOISE_WEIGHT + cases.freedom)
    share = np.array([1 - prior.exposed_share, prior.exposed_share])
    mean = np.array([prior.hidden_mean, prior.exposed_mean])
    sd = np.array([prior.hidden_sd, prior.exposed_sd])
    seen = (cases.spread > 0)[:, None]
    precision = (cases.spread / noise)[:, None]  # of the slope seen; 0 where all launches are of one scale
    variance = 1 / (precision + sd**-2.0)
    slope = variance * (precision * cases.slope[:, None] + mean / sd**2)
    spread = np.where(seen, 1 / np.where(seen, precision, 1.0), 0.0) + sd**2
    odds = np.where(seen, -0.5 * ((cases.slope[:, None] - mean) ** 2 / spread + np.log(spread)), 0.0) + np.log(share)
    weight = np.exp(odds - odds.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    away = (cases.target - cases.centre)[:, None]
    centre = cases.level[:, None] + slope * away
    scale = np.sqrt((noise * (1 + 1 / cases.launches))[:, None] + variance * away**2)
    stays = np.array([1.0, 1 - prior.break_chance]) * (1 - prior.tier_break * cases.crossed[:, None])
    weights = [weight * stays, *[weight * (1 - stays) / _STEPS] * _STEPS]
    centres = [centre, *(centre - prior.break_drop * drop for drop in _DROPS)]
    return np.concatenate(weights, 1), np.concatenate(centres, 1), np.concatenate([scale] * (_STEPS + 1), 1)


def log_density(prior: ScalingPrior, cases: Cases, observed: Array) -> Array:
    """Log density of what was observed (ln throughput a GPU) under each case's forecast."""
    weight, centre, scale = components(prior, cases)
    z = (observed[:, None] - centre) / scale
    constant = math.lgamma((TAILS + 1) / 2) - math.lgamma(TAILS / 2) - 0.5 * math.log(TAILS * math.pi)
    logs = constant - (TAILS + 1) / 2 * np.log1p(z * z / TAILS) - np.log(scale) + np.log(np.maximum(weight, 1e-300))
    top = logs.max(axis=1)
    density: Array = top + np.log(np.exp(logs - top[:, None]).sum(axis=1))
    return density


def steepest_rise(gpus: ArrayLike, throughput: ArrayLike) -> float:
    """Largest factor by which throughput a GPU grows from one scale to the next larger; launches of a scale averaged.

    Above ``SUPERLINEAR`` the smaller run was slowed by something (memory, recomputation) and no line should be fitted.
    """
    g, y = np.atleast_1d(np.asarray(gpus, dtype=float)), np.log(np.atleast_1d(np.asarray(throughput, dtype=float)))
    means = [float(y[g == scale].mean()) for scale in np.unique(g)]
    return math.exp(max((b - a for a, b in itertools.pairwise(means)), default=0.0))
