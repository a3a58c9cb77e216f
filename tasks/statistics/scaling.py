"""Throughput from small scales to large ones."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from tasks.statistics.means import Array
from tasks.statistics.predictive import TAILS, Predictive

# GATES 4.2: slope of ln(tokens/s/GPU) per doubling of GPUs: (weight, mean, sd). The first is the median and 1.48 MAD
# of 71 published series of tuned clusters; the second, "anything else", is a judgement. One sharp prior alone would
# shrink away the evidence of a bad network.
SLOPES = ((0.85, -0.009, 0.0075), (0.15, -0.03, 0.04))
SIGMA = 0.010  # sd of ln throughput of one launch around the line
STRONG_SIGMA = 0.041  # scale of t_4 whose 90th percentile of |error| is the 8.8% found on 13 strong-scaling series


def weak_scaling(gpus: ArrayLike, throughput: ArrayLike, target: float) -> Predictive:
    """Predict ln(tokens/s/GPU) at ``target`` GPUs from launches whose batch a GPU is the same (GATES 4.2).

    ``gpus`` and ``throughput`` hold one entry a launch. Log-linear in log2 GPUs, the slope shrunk to the mixture
    prior; of one launch alone the prior is all there is. Raises ValueError on no or not positive numbers.
    """
    x, y = _logs(gpus, throughput)
    k, centre = x.size, float(x.mean())
    sxx = float(((x - centre) ** 2).sum())
    w, mu, tau = (np.array(column) for column in zip(*SLOPES, strict=True))
    if sxx > 0:
        slope, v = float(((x - centre) * y).sum()) / sxx, SIGMA**2 / sxx
        var = 1 / (1 / v + 1 / tau**2)
        b = var * (slope / v + mu / tau**2)
        log_p = np.log(w) - 0.5 * (slope - mu) ** 2 / (v + tau**2) - 0.5 * np.log(v + tau**2)
        p = np.exp(log_p - log_p.max())
    else:
        var, b, p = tau**2, mu, w
    away = math.log2(target) - centre
    scale = np.sqrt(SIGMA**2 / k + var * away**2 + SIGMA**2)
    return Predictive(p / p.sum(), float(y.mean()) + b * away, scale, TAILS)


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
