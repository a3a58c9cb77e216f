"""Throughput from small scales to large ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from tasks.statistics.means import Array
from tasks.statistics.predictive import TAILS, Predictive
from tasks.statistics.scaling_prior import GPUS_PER_NODE, Cases, ScalingPrior, components

# What `scaleup backtest tests/data/published_scaling.csv --learn` prints: learned from 36 series of 16 families, all of
# tuned NVIDIA clusters. The share of exposed systems is the candidate that foretold left-out families best.
PUBLISHED = ScalingPrior(
    hidden_mean=-0.00456,
    hidden_sd=0.00384,
    exposed_share=0.20,
    exposed_mean=-0.0308,
    exposed_sd=0.0197,
    break_chance=0.413,
    break_drop=0.0704,
    tier_break=0.0903,
    launch_sd=0.00606,
)
SIGMA = 0.010  # sd of ln(step seconds) of one launch around the strong-scaling law (GATES 4.2)
STRONG_SIGMA = 0.041  # scale of t_4 whose 90th percentile of |error| is the 8.8% found on 13 strong-scaling series


def weak_scaling(
    gpus: ArrayLike,
    throughput: ArrayLike,
    target: float,
    *,
    tiers: Sequence[float] = (GPUS_PER_NODE,),
    prior: ScalingPrior = PUBLISHED,
) -> Predictive:
    """Predict ln(tokens/s/GPU) at ``target`` GPUs from launches whose batch a GPU is the same.

    ``gpus`` and ``throughput`` hold one entry a launch; ``tiers`` are the GPUs within one reach of the network: of a
    node, and of a pod where that is known. Of one scale alone the prior is all there is. Raises ValueError on no or
    not positive numbers. How, and why it widens where it does: :mod:`tasks.statistics.scaling_prior`.
    """
    x, y = _logs(gpus, throughput)
    if not (math.isfinite(target) and target > 0):
        raise ValueError(f"{target} GPUs are no scale to foretell")
    weight, centre, scale = components(prior, Cases.of([(x, y, math.log2(target))], tiers))
    return Predictive(weight[0], centre[0], scale[0], TAILS)


def strong_scaling(tokens_per_gpu: ArrayLike, step_seconds: ArrayLike, target: float) -> Predictive:
    """Predict ln(step seconds) at ``target`` tokens a GPU and step from T = w * tokens_per_gpu + s, fitted relatively.

    With a fixed global batch tokens a GPU go as 1/G and this is T = W/G + s (GATES 4.2). The error is that of the
    fit and, in quadrature, the backtest's. Raises ValueError where the data cannot tell w from s.
    """
    b, t = (np.asarray(v, dtype=float) for v in (tokens_per_gpu, step_seconds))
    _logs(b, t)
    if np.ptp(np.log(b)) < math.log(1.25):
        raise ValueError(
            "the batch a GPU hardly differs between the stages measured; work and overhead stay one number"
        )
    design = np.column_stack([b, np.ones_like(b)]) / t[:, None]
    (work, overhead), *_ = np.linalg.lstsq(design, np.ones_like(t), rcond=None)
    row = np.array([target, 1.0])
    covariance = SIGMA**2 * np.linalg.inv(design.T @ design)
    predicted = float(max(work, 0.0) * target + max(overhead, 0.0))
    fit = float(row @ covariance @ row) / predicted**2
    scale = math.sqrt(fit + STRONG_SIGMA**2)
    return Predictive(np.ones(1), np.array([math.log(predicted)]), np.array([scale]), TAILS)


def _logs(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    a, b = (np.atleast_1d(np.asarray(v, dtype=float)) for v in (x, y))
    if a.size == 0 or a.shape != b.shape:
        raise ValueError(f"{a.size} and {b.size} numbers to fit")
    if not (np.isfinite(a).all() and np.isfinite(b).all() and (a > 0).all() and (b > 0).all()):
        raise ValueError("a number to fit is not finite or not positive")
    return np.log2(a), np.log(b)
