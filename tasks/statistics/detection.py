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
HIGHEST_Z, LOWEST_Z = 4.0, -50.0  # one batch alone may not raise an alarm; far below the bar, e is 0 in any case
WARNS_EARLIER = 20.0  # the warning's threshold is the alarm's through this: 5e3 to 1e5
CONFIRM_BATCHES = 2  # fresh ones after an alarm

Tier = Literal["quiet", "warn", "confirming", "stop"]


def spikes(values: ArrayLike, *, window: int = 128, threshold: float = 6.0) -> NDArray[np.bool_]:
    """Mark steps whose z = (x - median) / (1.4826 MAD) over the ``window`` steps before exceeds ``threshold``.

    GATES 2.6. The first 10 steps have no history and are never marked; a value that is not finite always is.
    """
    x = np.asarray(values, dtype=float)
    marked: NDArray[np.bool_] = ~np.isfinite(x)
    if x.size <= 10:
        return marked
    padded = np.concatenate([np.full(window, np.nan), np.where(marked, np.nan, x)[:-1]])
    history = np.lib.stride_tricks.sliding_window_view(padded, window)[10 : x.size]
    rows = np.flatnonzero(np.isfinite(history).sum(axis=1) >= 10)
    median = np.nanmedian(history[rows], axis=1)
    mad = np.nanmedian(np.abs(history[rows] - median[:, None]), axis=1)
    tiny = 1e-12 + 1e-9 * np.abs(median)
    marked[10 + rows] |= (x[10 + rows] - median) / (1.4826 * mad + tiny) > threshold
    return marked


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

    z = min((batch mean - bar) / sd, 4); e(lam) = exp(lam z - lam^2/2); M_j(lam) = (M_{j-1}(lam) + 1) e_j(lam), the
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
        """Return z of each batch: sd above the bar, cut to -50..4. Raises ValueError on one that is not finite."""
        x = np.atleast_1d(np.asarray(batch_means, dtype=float))
        _refuse_not_finite(x)
        with np.errstate(over="ignore"):
            return np.clip((x - self.bar) / self.sd, LOWEST_Z, HIGHEST_Z)

    def update(self, batch_means: ArrayLike) -> tuple[EDetector, Array]:
        """Take more batches; return the new state and the natural log of the statistic after each.

        With C the running sum of ln e, ln M_j - C_j = logaddexp(ln M_{j-1} - C_{j-1}, -C_{j-1}): one accumulation.
        """
        z = self.scores(batch_means)
        if not z.size:
            return self, np.empty(0)
        lam = np.array(LAMBDAS)[:, None]
        summed = np.cumsum(lam * z - lam**2 / 2, axis=1)
        start = np.array(self.logs)[:, None]
        before = np.concatenate([np.zeros_like(start), summed[:, :-1]], axis=1)
        logs = summed + np.logaddexp.accumulate(np.concatenate([start, -before], axis=1), axis=1)[:, 1:]
        statistic = np.logaddexp.reduce(logs, axis=0) - math.log(len(LAMBDAS))
        return replace(self, logs=tuple(logs[:, -1].tolist()), batches=self.batches + z.size), statistic

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
