"""Foretell the largest scale of each series from its smaller ones, and say how far off that was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tasks import statistics
from tasks.backtest import rivals
from tasks.backtest.table import Series
from tasks.statistics import Array, Predictive, ScalingPrior

Fitted = Literal["two_smallest", "all_but_largest"]
OURS, MIXTURE, SINGLE = "scaleup", "mixture_of_4_2", "single_prior_of_4_2"
METHODS = (OURS, MIXTURE, SINGLE, "power_law", "constant", "usl")
RESAMPLES = 1000  # of the families, for the intervals
_FAR = 50.0  # no error in ln(throughput) is told beyond this: e^50 is wrong enough


@dataclass(frozen=True)
class Foretold:
    """One series, its largest scale foretold; errors are ln(observed) - ln(foretold), by method."""

    series: str
    family: str
    fitted: list[int]
    target: int
    observed: float
    refused: str = ""  # why there is no forecast; decided from the fitted scales alone
    error: dict[str, float] = field(default_factory=dict)
    below: dict[str, float] = field(default_factory=dict)  # ln(median) - ln(95% lower bound), where a method has one

    @property
    def gap(self) -> float:
        """How many times the largest scale fitted the target is."""
        return self.target / self.fitted[-1]

    def covered(self, method: str) -> bool:
        """Whether the observed throughput is not below the 95% lower bound."""
        return self.error[method] >= -self.below[method]

    def off(self, method: str = OURS) -> float:
        """Foretold over observed, less 1."""
        return math.expm1(-self.error[method])


@dataclass(frozen=True)
class Score:
    """How well a method did on some series: numbers with 90% intervals by resampling the families."""

    n: int
    median: float
    p90: float
    coverage: float | None  # of the nominal 95% lower bound
    interval: dict[str, tuple[float, float]]


def foretell(
    series: Sequence[Series],
    prior_without: Mapping[str, ScalingPrior],
    fitted: Fitted,
    *,
    told: Callable[[int], None] = lambda done: None,
) -> list[Foretold]:
    """Foretell every series with the prior that knows nothing of its family."""
    found = []
    for one in series:
        if one.kind == "strong":
            found.append(_strong(one, _used(one, fitted)))
        else:
            found.append(_weak(one, _used(one, fitted), prior_without[one.family]))
        told(len(found))
    return found


def _used(one: Series, fitted: Fitted) -> int:
    return 2 if fitted == "two_smallest" else one.gpus.size - 1


def _weak(one: Series, k: int, prior: ScalingPrior) -> Foretold:
    gpus, throughput, target = one.gpus[:k], one.throughput[:k], float(one.gpus[-1])
    rise = statistics.steepest_rise(gpus, throughput)
    if rise > statistics.SUPERLINEAR:
        return _foretold(one, k, f"a GPU did x{rise:.2f} among more GPUs: the smaller run was short of something")
    predictives = {
        OURS: statistics.weak_scaling(gpus, throughput, target, prior=prior),
        MIXTURE: rivals.shrunk_line(gpus, throughput, target, rivals.MIXTURE),
        SINGLE: rivals.shrunk_line(gpus, throughput, target, rivals.SINGLE),
    }
    return _compared(one, k, {name: _middle_and_low(p) for name, p in predictives.items()})


def _strong(one: Series, k: int) -> Foretold:
    """T = work / GPUs + overhead; a batch that no row tells is fixed, so 1/GPUs stands for it."""
    batch = one.batch if one.batch is not None else 1.0 / one.gpus
    seconds = batch / one.throughput
    try:
        predictive = statistics.strong_scaling(batch[:k], seconds[:k], float(batch[-1]))
    except ValueError as error:
        return _foretold(one, k, str(error))
    tokens = math.log(float(batch[-1]))
    middle = tokens - predictive.quantile(0.5)
    return _compared(one, k, {OURS: (middle, tokens - predictive.quantile(0.95))})


def _middle_and_low(predictive: Predictive) -> tuple[float, float]:
    return predictive.quantile(0.5), predictive.quantile(0.05)


def _compared(one: Series, k: int, bounds: dict[str, tuple[float, float]]) -> Foretold:
    fitted = one.gpus[:k], one.throughput[:k], float(one.gpus[-1])
    middle = {name: low_and_middle[0] for name, low_and_middle in bounds.items()}
    middle |= {
        "power_law": rivals.power_law(*fitted),
        "constant": rivals.constant(*fitted),
        "usl": rivals.usl(*fitted),
    }
    observed = math.log(float(one.throughput[-1]))
    error = {name: max(-_FAR, min(_FAR, observed - value)) for name, value in middle.items()}
    return _foretold(one, k, "", error, {name: centre - low for name, (centre, low) in bounds.items()})


def _foretold(
    one: Series, k: int, refused: str, error: dict[str, float] | None = None, below: dict[str, float] | None = None
) -> Foretold:
    fitted, target = [int(g) for g in one.gpus[:k]], int(one.gpus[-1])
    return Foretold(one.name, one.family, fitted, target, float(one.throughput[-1]), refused, error or {}, below or {})


def methods_of(found: Sequence[Foretold]) -> list[str]:
    """Return the methods that foretold these series, ours first."""
    return [name for name in METHODS if any(name in one.error for one in found)]


def score(found: Sequence[Foretold], method: str) -> Score | None:
    """Return a method's median and p90 of |foretold/observed - 1| and its coverage, or None where nothing was foretold.

    The intervals resample families with replacement, seeded; with one family there are none.
    """
    made = [one for one in found if not one.refused]
    if not made:
        return None
    bounded = all(method in one.below for one in made)
    off = np.array([abs(one.off(method)) for one in made])
    inside = np.array([one.covered(method) for one in made], dtype=float) if bounded else np.zeros(len(made))
    middle, high, coverage = _figures(off, inside)
    drawn = np.array([_figures(off[rows], inside[rows]) for rows in _resampled([one.family for one in made])])
    interval = {}
    if drawn.size:
        low, up = np.quantile(drawn, [0.05, 0.95], axis=0)
        names = ("median", "p90", "coverage") if bounded else ("median", "p90")
        interval = {name: (float(low[i]), float(up[i])) for i, name in enumerate(names)}
    return Score(len(made), middle, high, coverage if bounded else None, interval)


def _figures(off: Array, inside: Array) -> tuple[float, float, float]:
    return float(np.median(off)), float(np.quantile(off, 0.9)), float(inside.mean())


def _resampled(families: Sequence[str]) -> Iterator[Array]:
    names, member = np.unique(np.array(families), return_inverse=True)
    if names.size < 2:
        return
    rows = [np.flatnonzero(member == i) for i in range(names.size)]
    draws = np.random.default_rng(0).integers(names.size, size=(RESAMPLES, names.size))
    for draw in draws:
        yield np.concatenate([rows[i] for i in draw])
