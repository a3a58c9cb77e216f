"""What else could foretell ln(throughput a GPU), fitted on the same rows: the yardsticks of a backtest."""

from __future__ import annotations

import math

import numpy as np

from tasks.statistics import TAILS, Array, Predictive

# GATES 4.2: slope of ln(tokens/s/GPU) per doubling of GPUs: (weight, mean, sd); its launch noise; its single prior.
MIXTURE = ((0.85, -0.009, 0.0075), (0.15, -0.03, 0.04))
SINGLE = ((1.0, -0.009, 0.0075),)
NOISE = 0.010


def shrunk_line(
    gpus: Array, throughput: Array, target: float, slopes: tuple[tuple[float, float, float], ...]
) -> Predictive:
    """Return the predictor of GATES 4.2: a line with its slope shrunk to a mixture, noise known, no breaks."""
    x, y = np.log2(gpus), np.log(throughput)
    spread = float(((x - x.mean()) ** 2).sum())
    weight, mean, sd = (np.array(column) for column in zip(*slopes, strict=True))
    slope, var = float(((x - x.mean()) * y).sum()) / spread, NOISE**2 / spread
    variance = 1 / (1 / var + 1 / sd**2)
    odds = np.log(weight) - 0.5 * (slope - mean) ** 2 / (var + sd**2) - 0.5 * np.log(var + sd**2)
    p = np.exp(odds - odds.max())
    away = math.log2(target) - float(x.mean())
    centre = float(y.mean()) + variance * (slope / var + mean / sd**2) * away
    return Predictive(p / p.sum(), centre, np.sqrt(NOISE**2 / x.size + variance * away**2 + NOISE**2), TAILS)


def power_law(gpus: Array, throughput: Array, target: float) -> float:
    """Extrapolate throughput a GPU = a G^b by least squares in logarithms."""
    x, y = np.log(gpus), np.log(throughput)
    slope = float(((x - x.mean()) * y).sum() / ((x - x.mean()) ** 2).sum())
    return float(y.mean()) + slope * (math.log(target) - float(x.mean()))


def constant(gpus: Array, throughput: Array, target: float) -> float:
    """Suppose that a GPU does at the target what it does at the largest scale fitted."""
    return float(np.log(throughput[int(np.argmax(gpus))]))


def usl(gpus: Array, throughput: Array, target: float) -> float:
    """Extrapolate Gunther's universal scalability law, throughput a GPU = l / (1 + s (G - 1) + k G (G - 1)).

    1/throughput is linear in (1, G - 1, G (G - 1)); relative least squares with s, k >= 0. Two scales cannot tell s
    from k: there k = 0, which is Amdahl's law and errs less.
    """
    from scipy.optimize import nnls

    terms = 2 if gpus.size < 3 else 3
    design = np.column_stack([np.ones_like(gpus), gpus - 1, gpus * (gpus - 1)])[:, :terms]
    size = design.max(axis=0)
    found, _ = nnls(design / size * (throughput / throughput.max())[:, None], np.ones_like(gpus))
    at = np.array([1.0, target - 1, target * (target - 1)])[:terms] / size
    inverse = float(found @ at)
    return float(np.log(throughput.max())) - math.log(inverse) if inverse > 0 else constant(gpus, throughput, target)
