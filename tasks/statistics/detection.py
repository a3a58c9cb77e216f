"""Events in a stream: single spikes, and a change that stays (Shiryaev-Roberts e-detector, GATES 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.statistics.means import Array

ARMED_AFTER = 20  # batches; fewer give a baseline too uncertain to hold a bar against
LAMBDAS = (0.25, 0.5, 1.0, 2.0)  # shifts, in sd of a batch mean, for which the detector is fastest
# One batch alone may not raise an alarm: at 3.5 heavy spikes cost half the false alarms they cost at 4, and no delay.
HIGHEST_Z = 3.5
LOWEST_Z = -50.0  # so far below the bar e is 0 in any case
WARNS_EARLIER = 20.0  # the warning's threshold is the alarm's through this: 5e3 to 1e5
CONFIRM_BATCHES = 2  # fresh ones after an alarm

_ROWS = 4096  # looked at together: 4 MiB of histories, which a cache holds
_LEAST_HISTORY = 10

Tier = Literal["quiet", "warn", "confirming", "stop"]


def spikes(
    values: ArrayLike, *, window: int = 128, threshold: float = 6.0, before: ArrayLike = ()
) -> NDArray[np.bool_]:
    """Mark steps whose z = (x - median) / (1.4826 MAD) over the ``window`` steps before exceeds ``threshold``.

    GATES 2.6. A step with fewer than 10 finite ones before it is not marked; a value that is not finite always is.
    ``before`` holds the values before the first, so that a stream is marked piece by piece as it is in one.
    """
    x, head = np.asarray(values, dtype=float), np.asarray(before, dtype=float)[-window:]
    marked: NDArray[np.bool_] = ~np.isfinite(x)
    known = np.concatenate([np.full(window - head.size, np.nan), head, x])
    known[~np.isfinite(known)] = np.nan
    history = np.lib.stride_tricks.sliding_window_view(known, window)
    for at in range(0, x.size, _ROWS):
        piece = slice(at, min(at + _ROWS, x.size))
        marked[piece] |= _far_above(x[piece], history[piece], threshold)
    return marked


def _far_above(x: Array, history: Array, threshold: float) -> NDArray[np.bool_]:
    """Mark values far above the robust spread of their own row of ``history``, in which NaN means nothing known."""
    middle, count = _row_medians(history)
    far = np.zeros(x.size, dtype=bool)
    rows = np.flatnonzero((count >= _LEAST_HISTORY) & (x > middle))  # the spread of the others is not asked for
    middle = middle[rows]
    with np.errstate(over="ignore"):  # an infinite spread marks nothing
        mad, _ = _row_medians(np.abs(history[rows] - middle[:, None]))
        tiny = 1e-12 + 1e-9 * np.abs(middle)
        far[rows] = x[rows] - middle > threshold * (1.4826 * mad + tiny)
    return far


def _row_medians(rows: Array) -> tuple[Array, NDArray[np.intp]]:
    """Return median and count of the finite values of each row; numpy's nanmedian takes fifty times as long."""
    ordered = np.sort(rows, axis=1)  # NaN last
    count = rows.shape[1] - np.isnan(ordered).sum(axis=1)
    each = np.arange(rows.shape[0])
    low, high = ordered[each, np.maximum(count - 1, 0) // 2], ordered[each, np.minimum(count // 2, rows.shape[1] - 1)]
    return low / 2 + high / 2, count


@dataclass(frozen=True)
class Baseline:
    """Level of a stream and sd of one batch mean around it."""

    mean: float
    sd: float
    batches: int


def fit_baseline(batch_means: ArrayLike, *, least_sd: float = 0.0) -> Baseline:
    """Mean of >= 20 batch means and S = max(sd, 1.4826 MAD, .002 |mean|, ``least_sd``) of one (GATES 3).

    Raises ValueError under 20 batches, on a value that is not finite, and where S would be 0.
    """
    z = np.asarray(batch_means, dtype=float)
    if z.size < ARMED_AFTER:
        raise ValueError(f"{z.size} batches are too few for a baseline; {ARMED_AFTER} are the least")
    _refuse_not_finite(z)
    mean = float(z.mean())
    mad = float(np.median(np.abs(z - np.median(z))))
    sd = max(float(z.std(ddof=1)), 1.4826 * mad, 0.002 * abs(mean), least_sd)
    if not (sd > 0 and math.isfinite(sd)):
        raise ValueError(f"the sd of {z.size} batch means is {sd:g}; a detector needs a positive one")
    return Baseline(mean, sd, z.size)


def alarm_threshold(budget: float, planned_batches: int) -> float:
    """Natural log of the threshold that a stage of ``planned_batches`` crosses falsely with at most ``budget``.

    The statistic has mean n after n batches without a change, so P(it reaches A within n) <= n/A (Doob's inequality
    for the submartingale; Shin, Ramdas & Rinaldo 2024). Raises ValueError unless 0 < budget < 1 and there is a batch.
    """
    if not 0 < budget < 1 or planned_batches < 1:
        raise ValueError(f"budget {budget:g} over {planned_batches} batches; asked are 0 < budget < 1 and a batch")
    return math.log(planned_batches / budget)


@dataclass(frozen=True)
class EDetector:
    """Evidence that batch means lie above ``bar``, since whichever batch says most; a value, so a restart goes on.

    z = min((batch mean - bar) / sd, 3.5); e(lam) = exp(lam z - lam^2/2); M_j(lam) = (M_{j-1}(lam) + 1) e_j(lam), the
    statistic being the mean over lam. A baseline is itself an estimate: the tolerance between it and the bar (twice
    the launch-to-launch sd or more) is part of what keeps false alarms rare, not a matter of taste.
    """

    bar: float
    sd: float  # of one batch mean
    logs: tuple[float, ...] = (-math.inf,) * len(LAMBDAS)  # ln M(lam)
    batches: int = 0  # taken so far

    @classmethod
    def relative(cls, baseline: Baseline, tolerance: float) -> EDetector:
        """Bar at (1 + ``tolerance``) of a positive level: step seconds."""
        return cls(baseline.mean * (1 + tolerance), baseline.sd)

    @classmethod
    def additive(cls, baseline: Baseline, tolerance: float) -> EDetector:
        """Bar ``tolerance`` above the level, in the stream's own unit: nats of a loss."""
        return cls(baseline.mean + tolerance, baseline.sd)

    @property
    def log_statistic(self) -> float:
        """Natural log of the statistic now; -inf before the first batch."""
        return float(np.logaddexp.reduce(self.logs)) - math.log(len(LAMBDAS))

    def scores(self, batch_means: ArrayLike) -> Array:
        """Return z of each batch: sd above the bar, cut to -50..3.5. Raises ValueError on one that is not finite."""
        x = np.atleast_1d(np.asarray(batch_means, dtype=float))
        _refuse_not_finite(x)
        with np.errstate(over="ignore"):
            return np.clip((x - self.bar) / self.sd, LOWEST_Z, HIGHEST_Z)

    def update(self, batch_means: ArrayLike) -> tuple[EDetector, Array]:
        """Take more batches; return the new state and the natural log of the statistic after each."""
        z = self.scores(batch_means)
        logs, said = np.array(self.logs)[:, None], [np.empty(0)]
        for at in range(0, z.size, _ROWS):
            after = _accumulated(logs, z[at : at + _ROWS])
            said.append(np.logaddexp.reduce(after, axis=0) - math.log(len(LAMBDAS)))
            logs = after[:, -1:]
        state = replace(self, logs=tuple(logs[:, 0].tolist()), batches=self.batches + z.size)
        return state, np.concatenate(said)

    def restarted(self) -> EDetector:
        """Return the detector with its evidence forgotten, bar and sd kept."""
        return replace(self, logs=(-math.inf,) * len(LAMBDAS))

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary; -inf becomes None (JSON has none)."""
        logs = [log if math.isfinite(log) else None for log in self.logs]
        return {"bar": self.bar, "sd": self.sd, "logs": logs, "batches": self.batches}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EDetector:
        """Read what :meth:`to_json` wrote."""
        logs = tuple(-math.inf if log is None else float(log) for log in value["logs"])
        return cls(float(value["bar"]), float(value["sd"]), logs, int(value["batches"]))


def _accumulated(start: Array, z: Array) -> Array:
    """Return ln M after each score, a row a lambda, from ln M before the first, a column.

    With C the running sum of ln e, ln M_j - C_j = logaddexp(ln M_{j-1} - C_{j-1}, -C_{j-1}): one accumulation.
    """
    lam = np.array(LAMBDAS)[:, None]
    summed = np.cumsum(lam * z - lam**2 / 2, axis=1)
    before = np.concatenate([np.zeros_like(start), summed[:, :-1]], axis=1)
    return np.asarray(summed + np.logaddexp.accumulate(np.concatenate([start, -before], axis=1), axis=1)[:, 1:])


@dataclass(frozen=True)
class TwoTiers:
    """A detector that warns at a twentieth of the threshold, and stops once fresh batches confirm an alarm.

    The batches after the alarm had no part in it: two of them must lie above the bar on the mean. Otherwise the
    evidence is forgotten and collected anew.
    """

    detector: EDetector
    threshold: float  # natural log, from :func:`alarm_threshold`
    fresh: tuple[float, ...] | None = None  # z of the batches since an alarm; None while there is none

    def update(self, batch_mean: float) -> tuple[TwoTiers, Tier]:
        """Take one more batch; return the new state and what it says."""
        score = float(self.detector.scores(batch_mean)[0])
        detector, logs = self.detector.update(batch_mean)
        if self.fresh is None:
            if logs[-1] >= self.threshold:
                return replace(self, detector=detector, fresh=()), "confirming"
            warned = logs[-1] >= self.threshold - math.log(WARNS_EARLIER)
            return replace(self, detector=detector), "warn" if warned else "quiet"
        fresh = (*self.fresh, score)
        if len(fresh) < CONFIRM_BATCHES:
            return replace(self, detector=detector, fresh=fresh), "confirming"
        if sum(fresh) > 0:
            return replace(self, detector=detector, fresh=None), "stop"
        return replace(self, detector=detector.restarted(), fresh=None), "quiet"

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary."""
        fresh = None if self.fresh is None else list(self.fresh)
        return {"detector": self.detector.to_json(), "threshold": self.threshold, "fresh": fresh}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TwoTiers:
        """Read what :meth:`to_json` wrote."""
        fresh = value["fresh"]
        detector = EDetector.from_json(value["detector"])
        return cls(detector, float(value["threshold"]), None if fresh is None else tuple(map(float, fresh)))


def _refuse_not_finite(values: Array) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        raise ValueError(f"{int(bad.sum())} of {values.size} batch means are not finite")
