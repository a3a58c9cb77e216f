"""Where the level of a series of nights changed: energy statistic to find, t test with correlated noise to believe.

Divisive search by energy distance (Matteson & James 2014), in half-overlapping windows so that a far past does not
hide the present, then pruned by test and size (Fleming et al. 2023). In place of permutations stands Student's t with
the sample size that AR(1) noise leaves (GATES 7.2, N1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from tasks.statistics.means import Array

FEWEST_NIGHTS = 10
CANDIDATE = 10.0  # a break enters the list at ten times the p that it must reach to stay on it


@dataclass(frozen=True)
class ChangePoint:
    """The first night of a new level, the levels (means) on its two sides, and p of their being equal."""

    index: int
    before: float
    after: float
    p_value: float

    @property
    def change(self) -> float:
        """Relative change of level, negative for a fall; infinite where the level before is 0."""
        apart = self.after - self.before
        return apart / abs(self.before) if self.before else math.copysign(math.inf, apart) if apart else 0.0


@dataclass(frozen=True)
class ChangeRule:
    """What counts as a change of level."""

    p_value: float = 1e-3
    least_change: float = 0.02  # relative
    least_segment: int = 2  # nights; one bad night is no new level
    window: int = 50  # nights looked at together
    correlated: bool = True  # whether nights next to each other may share noise


def level_changes(values: ArrayLike, rule: ChangeRule | None = None) -> list[ChangePoint]:
    """Find the nights at which the level changed, in order.

    Raises ValueError on fewer than 10 values or one that is not finite.
    """
    rule, y = rule or ChangeRule(), np.asarray(values, dtype=float)
    if y.size < FEWEST_NIGHTS:
        raise ValueError(f"{y.size} values are too few to find a change of level in; {FEWEST_NIGHTS} are the least")
    if not np.isfinite(y).all():
        raise ValueError(f"{int((~np.isfinite(y)).sum())} of {y.size} values are not finite")
    unit = float(np.abs(y).max(initial=0.0)) or 1.0  # squares neither overflow nor vanish, whatever is measured
    found: set[int] = set()
    start = 0
    while True:
        inside = _divide(y / unit, start, min(start + rule.window, y.size), rule)
        found.update(inside)
        if start + rule.window >= y.size:
            break
        start = max([start + rule.window // 2, *inside])
    believed = _believed(y / unit, sorted(found), rule)
    return [replace(point, before=point.before * unit, after=point.after * unit) for point in believed]


def p_of_equal_levels(left: Array, right: Array, *, correlated: bool) -> float:
    """Two-sided p of equal means: t with pooled variance (ddof 1) and n (1 - rho)/(1 + rho) in place of n.

    rho is the lag-1 autocorrelation of both sides about their own means, negative ones taken for 0.
    """
    from scipy.special import stdtr

    if left.size + right.size <= 2:
        return 1.0
    apart = float(right.mean() - left.mean())
    rests = left - left.mean(), right - right.mean()
    squares = sum(float((rest**2).sum()) for rest in rests)
    shrink = _left_of_sample(rests) if correlated else 1.0
    n = [max(1.0, side.size * shrink) for side in (left, right)]
    variance = squares / (left.size + right.size - 2)
    se = math.sqrt(variance * (1 / n[0] + 1 / n[1]))
    if se <= 1e-12 * abs(apart):
        return 0.0 if apart else 1.0
    return 2 * float(stdtr(max(1.0, sum(n) - 2), -abs(apart) / se))


def _left_of_sample(rests: tuple[Array, Array]) -> float:
    """Share of the sample that AR(1) noise leaves: (1 - rho)/(1 + rho)."""
    products = sum(float((rest[1:] * rest[:-1]).sum()) for rest in rests)
    squares = sum(float((rest**2).sum()) for rest in rests)
    rho = min(max(products / squares, 0.0), 0.95) if squares > 0 else 0.0
    return (1 - rho) / (1 + rho)


def _divide(y: Array, start: int, stop: int, rule: ChangeRule) -> list[int]:
    """Split y[start:stop] where the energy statistic is greatest, and the parts again, while a test supports it.

    This test takes nights as independent and looks no further than the level that follows: neighbours of other levels
    would look like noise that lasts, and a level that returns would hide (0 of 400 found where 398 are so).
    """
    if stop - start < 2 * rule.least_segment:
        return []
    left, right, _ = best_split(y[start:stop], rule.least_segment)
    at = start + left
    if p_of_equal_levels(y[start:at], y[at : start + right], correlated=False) > min(0.5, CANDIDATE * rule.p_value):
        return []
    return [*_divide(y, start, at, rule), at, *_divide(y, at, stop, rule)]


def best_split(y: Array, least: int) -> tuple[int, int, float]:
    """First and end index of the right part where its energy distance to all that is left of it is greatest, and that.

    q(tau, kappa) = mn/(m+n) [2/(mn) sum |x - x'| across - 1/C(m,2) sum within left - 1/C(n,2) sum within right], left
    y[:tau], right y[tau:kappa], over all tau and kappa, so that a level may return after it (Matteson & James 2014).
    Both have ``least`` values or more.
    """
    size = y.size
    total = np.zeros((size + 1, size + 1))
    total[1:, 1:] = np.abs(y[:, None] - y[None, :]).cumsum(axis=0).cumsum(axis=1)
    tau, kappa = np.arange(size + 1)[:, None], np.arange(size + 1)[None, :]
    m, n = tau, kappa - tau
    within = np.diag(total)
    inside_left, across = within[:, None] / 2, total - within[:, None]
    inside_right = (within[None, :] - 2 * total + within[:, None]) / 2
    allowed = (m >= least) & (n >= least)
    m, n = np.where(allowed, m, 1), np.where(allowed, n, 1)
    left, right = (2 * inside / np.maximum(k * (k - 1), 1) for inside, k in ((inside_left, m), (inside_right, n)))
    q = np.where(allowed, m * n / (m + n) * (2 * across / (m * n) - left - right), -np.inf)
    at, end = np.unravel_index(np.argmax(q), q.shape)
    return int(at), int(end), float(q[at, end])


def _believed(y: Array, breaks: list[int], rule: ChangeRule) -> list[ChangePoint]:
    """Strike the least believable break, judge its neighbours anew, until all that are left are sure and large."""
    while True:
        edges = [0, *breaks, y.size]
        points = [_point(y, *part, rule) for part in zip(edges, edges[1:], edges[2:], strict=False)]
        doubtful = [point for point in points if point.p_value > rule.p_value]
        small = [point for point in points if abs(point.change) < rule.least_change]
        if doubtful:
            breaks.remove(max(doubtful, key=lambda point: point.p_value).index)
        elif small:
            breaks.remove(min(small, key=lambda point: abs(point.change)).index)
        else:
            return points


def _point(y: Array, start: int, at: int, stop: int, rule: ChangeRule) -> ChangePoint:
    left, right = y[start:at], y[at:stop]
    p_value = p_of_equal_levels(left, right, correlated=rule.correlated)
    return ChangePoint(at, float(left.mean()), float(right.mean()), p_value)
