"""Learn a :class:`ScalingPrior` from published series, and choose what cannot be learned, always on other families.

The likelihood is that of forecasts: each series is fitted on one scale, on two neighbours, on all scales up to one,
and every later scale is foretold. A series counts once however many scales it has, and a family of n series counts
for sqrt(n), so that twelve releases of one recipe are no twelve recipes. The penalty of each setting is a normal prior
around GATES 4.2, so that a family's absence cannot carry a setting far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasks.statistics.means import Array
from tasks.statistics.scaling_prior import GPUS_PER_NODE, SUPERLINEAR, Cases, ScalingPrior, log_density

# GATES 4.2 where it says something, else a judgement: what is believed before any table is read.
START = ScalingPrior(
    hidden_mean=-0.004, hidden_sd=0.004, exposed_share=0.15, exposed_mean=-0.03, exposed_sd=0.03,
    break_chance=0.3, break_drop=0.05, tier_break=0.1, launch_sd=0.006,
)  # fmt: skip
# How far each setting may move from there: the sd of its prior, on its own axis (plain, logarithm or log-odds).
_FREE: dict[str, tuple[str, float]] = {
    "hidden_mean": ("plain", 0.004), "hidden_sd": ("log", 0.5), "exposed_mean": ("plain", 0.015),
    "exposed_sd": ("log", 0.5), "break_chance": ("odds", 1.0), "break_drop": ("log", 0.5), "tier_break": ("odds", 1.0),
    "launch_sd": ("log", 0.3),
}  # fmt: skip
# What is chosen rather than fitted. Tables of survivors cannot teach the share of exposed systems; above .2 a system
# that loses 1% a doubling would no longer pass four times in five (GATES 4.2's operating characteristic). The last:
# no breaks.
CANDIDATES = (
    *(replace(START, exposed_share=share) for share in (0.10, 0.15, 0.20)),
    replace(START, break_chance=0.0, tier_break=0.0),
)


@dataclass(frozen=True)
class ScalingSeries:
    """Throughput a GPU of one recipe at growing scales, in any unit; ``gpus`` ascend, one entry a scale."""

    name: str
    family: str
    gpus: Array
    throughput: Array

    def usable(self, scales: slice) -> bool:
        """Whether these scales may be fitted: no GPU does much more among more GPUs."""
        return bool((np.diff(np.log(self.throughput[scales])) <= math.log(SUPERLINEAR)).all())


class _Lessons:
    """All forecasts that the series allow, with outcome, family and weight."""

    def __init__(self, series: Sequence[ScalingSeries], tiers: Sequence[float]) -> None:
        sizes = {f: sum(s.family == f for s in series) for f in {s.family for s in series}}
        cases, outcome, family, weight = [], [], [], []
        for one in series:
            mine = list(_forecasts(one))
            cases += [case for case, _ in mine]
            outcome += [y for _, y in mine]
            family += [one.family] * len(mine)
            weight += [1 / math.sqrt(sizes[one.family]) / len(mine)] * len(mine)
        self.cases, self.outcome = Cases.of(cases, tiers), np.array(outcome)
        self.family, self.weight = np.array(family), np.array(weight) * math.sqrt(len(series) / max(len(sizes), 1))

    def without(self, *families: str) -> Callable[[ScalingPrior], float]:
        """Return the weighted log likelihood of a prior on all families but these."""
        keep = ~np.isin(self.family, families)
        return self._likelihood(keep)

    def only(self, family: str) -> Callable[[ScalingPrior], float]:
        """Return the weighted log likelihood of a prior on one family."""
        return self._likelihood(self.family == family)

    def _likelihood(self, keep: NDArray[np.bool_]) -> Callable[[ScalingPrior], float]:
        cases, outcome, weight = self.cases.take(keep), self.outcome[keep], self.weight[keep]
        return lambda prior: float(weight @ log_density(prior, cases, outcome))


def _forecasts(one: ScalingSeries) -> Iterator[tuple[tuple[Array, Array, float], float]]:
    x, y = np.log2(one.gpus), np.log(one.throughput)
    last = x.size
    windows = {(i, i + 1) for i in range(last)} | {(i, i + 2) for i in range(last)} | {(0, k) for k in range(3, last)}
    for a, b in sorted(windows):
        if one.usable(slice(a, max(b, a + 2))):
            for j in range(b, last):
                yield (x[a:b], y[a:b], float(x[j])), float(y[j])


def fit_prior(
    likelihood: Callable[[ScalingPrior], float], start: ScalingPrior, near: ScalingPrior | None = None
) -> ScalingPrior:
    """Return the settings of greatest posterior density around ``start``; one that starts at 0 stays 0.

    The search begins at ``near`` where given: the settings without one more family lie close to those with it.
    """
    from scipy.optimize import minimize

    free = {name: how for name, how in _FREE.items() if getattr(start, name) != 0.0}
    at = np.array([_axis(how, getattr(start, name)) for name, (how, _) in free.items()])
    sd = np.array([sd for _, sd in free.values()])

    def moved(steps: Array) -> ScalingPrior:
        values = at + steps * sd
        return replace(start, **{n: _back(how, v) for (n, (how, _)), v in zip(free.items(), values, strict=True)})

    begin = np.array([_axis(how, getattr(near or start, name)) for name, (how, _) in free.items()])
    found = minimize(
        lambda steps: 0.5 * float(steps @ steps) - likelihood(moved(steps)),
        np.clip((begin - at) / sd, -6.0, 6.0),
        method="L-BFGS-B",
        bounds=[(-6.0, 6.0)] * len(free),
        options={"maxiter": 60, "ftol": 1e-8},
    )
    return moved(found.x)


def _axis(how: str, value: float) -> float:
    if how == "plain":
        return value
    return math.log(value) if how == "log" else math.log(value / (1 - value))


def _back(how: str, value: float) -> float:
    if how == "plain":
        return float(value)
    return math.exp(value) if how == "log" else 1 / (1 + math.exp(-value))


def learn(series: Sequence[ScalingSeries], tiers: Sequence[float] = (GPUS_PER_NODE,)) -> ScalingPrior:
    """Return the prior learned from all series: the candidate that foretells left-out families best, fitted to all."""
    lessons = _Lessons(series, tiers)
    families = sorted(set(lessons.family))
    fitted = [fit_prior(lessons.without(), candidate) for candidate in CANDIDATES]
    scores = [
        sum(lessons.only(f)(fit_prior(lessons.without(f), candidate, near)) for f in families)
        for candidate, near in zip(CANDIDATES, fitted, strict=True)
    ]
    return fitted[int(np.argmax(scores))]


def learn_without(
    series: Sequence[ScalingSeries],
    tiers: Sequence[float] = (GPUS_PER_NODE,),
    told: Callable[[float], None] = lambda part: None,
) -> dict[str, ScalingPrior]:
    """Return for each family the prior learned with it left out, the candidate chosen by leaving out a second one.

    A fit without f and g serves the choice for f (scored on g) and for g (scored on f). ``told`` hears the part done.
    """
    lessons = _Lessons(series, tiers)
    families = sorted(set(lessons.family))
    score = np.zeros((len(families), len(CANDIDATES)))
    fitted = []
    for i, f in enumerate(families):
        fitted.append([fit_prior(lessons.without(f), candidate) for candidate in CANDIDATES])
        for j, g in enumerate(families[:i]):
            for c, candidate in enumerate(CANDIDATES):
                both = fit_prior(lessons.without(f, g), candidate, near=fitted[i][c])
                score[i, c] += lessons.only(g)(both)
                score[j, c] += lessons.only(f)(both)
        told((i + 1) ** 2 / len(families) ** 2)
    return {f: fitted[i][int(score[i].argmax())] for i, f in enumerate(families)}
