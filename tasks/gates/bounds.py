"""Gates on bounds: a metric that stays where it belongs, and a result that is not better than it can be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tasks import statistics
from tasks.gates import frames, launches, next_measurement, scaling
from tasks.gates.core import Check, Evidence, Outcome, Unusable, gate
from tasks.gates.thresholds import Confidence, NotNegative


@gate(when="end", needs=("step",), ordered=(("low", "high"),), any_of=("low", "high"))
def within(
    evidence: Evidence,
    *,
    metric: str,
    low: float | None = None,
    high: float | None = None,
    phase: Literal["replay", "canary", "train"] = "train",
    over: Literal["every step", "mean"] = "every step",
    confidence: Confidence = 0.95,
) -> Check:
    """A recorded metric stays between its bounds, at every step or in the mean."""
    name, bounds = evidence.stage.name, _Bounds(low, high)
    if low is None and high is None:
        raise Unusable("neither low nor high is given, so nothing is asked")
    frame = frames.steps(evidence, name, (phase,))
    of = frames.moved(frame) if metric == "grad_norm" else frame
    values = frames.numbers(of, metric, f"{phase} steps of {name}")
    frames.refuse_cut_short(evidence, frame, phase)
    found = bounds.mean(values, metric, confidence) if over == "mean" else bounds.every_step(values, metric)
    at_bound = f"somebody looks at the curve of {metric}: its mean lies on a bound"
    return Check(
        "within",
        found.outcome,
        found.said,
        estimate=found.estimate,
        interval=found.interval,
        limit=bounds.nearest(found.estimate),
        unit=metric,
        n=int(values.size),
        window=frames.window(frame, phase),
        method=found.method,
        next_step="" if found.outcome is Outcome.PASS else f"look at the curve of {metric} where it leaves its bounds",
        measurement=next_measurement.person(at_bound) if found.outcome is Outcome.NEED_MORE_DATA else None,
    )


@dataclass(frozen=True)
class _Found:
    """Where a metric lies beside its bounds."""

    outcome: Outcome
    estimate: float
    interval: tuple[float, float]
    said: str
    method: str


@dataclass(frozen=True)
class _Bounds:
    """Where a metric belongs; an end that is None is open."""

    low: float | None
    high: float | None

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends as numbers."""
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high

    def __str__(self) -> str:
        """The bounds in words."""
        return " to ".join("" if bound is None else f"{bound:g}" for bound in (self.low, self.high))

    def mean(self, values: statistics.Array, metric: str, confidence: float) -> _Found:
        """Judge the mean: open where its interval spans a bound."""
        mean, (low, high) = statistics.batch_means(values, confidence=confidence), self.ends
        inside, outside = low <= mean.low and mean.high <= high, mean.high < low or mean.low > high
        outcome = Outcome.PASS if inside else Outcome.FAIL if outside else Outcome.NEED_MORE_DATA
        said = f"the mean of {metric} is {mean.value:.4g} ({mean.low:.4g} to {mean.high:.4g}); {self} is asked"
        return _Found(outcome, mean.value, (mean.low, mean.high), said, "batch means, t interval")

    def every_step(self, values: statistics.Array, metric: str) -> _Found:
        """Judge each value; the estimate is the one nearest to leaving the bounds, or furthest outside."""
        low, high = self.ends
        room = np.minimum(values - low, high - values)
        count, least, most = int((room < 0).sum()), float(values.min()), float(values.max())
        said = f"{metric} is {least:.4g} to {most:.4g} over {values.size} steps, {count} of them outside {self}"
        outcome = Outcome.FAIL if count else Outcome.PASS
        return _Found(outcome, float(values[int(room.argmin())]), (least, most), said, "every step")

    def nearest(self, value: float) -> float | None:
        """Return the bound that a value speaks of: the upper one where it lies above the lower."""
        return self.high if self.low is None or (self.high is not None and value > self.low) else self.low


@dataclass(frozen=True)
class _Result:
    """A result beside the better end of what was forecast for it."""

    estimate: float
    limit: float
    suspicious: bool
    unit: str
    n: int
    window: str
    said: str


@gate(when="end", needs=("step_seconds", "held_out"))
def too_good(evidence: Evidence, *, speed_margin: NotNegative = 0.02, loss_margin: NotNegative = 0.01) -> Check:
    """Neither speed nor loss is better than the forecast's interval allows: what is too good is first explained."""
    forecast = evidence.forecast or {}
    found = (_speed(evidence, forecast, speed_margin), _loss(evidence, forecast, loss_margin))
    known = [result for result in found if result is not None]
    if not known:
        raise Unusable(f"neither a speed nor a loss was forecast for {evidence.stage.name}, so nothing can be too good")
    worst = next((result for result in known if result.suspicious), known[0])
    what = "somebody finds out why it is better than foretold: work left out, held-out text trained on, a unit mistaken"
    return Check(
        "too_good",
        Outcome.NEED_MORE_DATA if worst.suspicious else Outcome.PASS,
        "; ".join(result.said for result in known),
        estimate=worst.estimate,
        limit=worst.limit,
        unit=worst.unit,
        n=worst.n,
        window="; ".join(result.window for result in known),
        against="the forecast registered before the stage started",
        method="the better end of the forecast's 90% interval and a margin; a speed's own interval must lie beyond",
        next_step=what if worst.suspicious else "",
        measurement=next_measurement.person(what) if worst.suspicious else None,
    )


def _speed(evidence: Evidence, forecast: Mapping[str, Any], margin: float) -> _Result | None:
    """Compare tokens/s/GPU with the upper end of what was forecast; None where no speed was."""
    high = (forecast.get("throughput") or {}).get("high")
    if high is None or scaling.registered(forecast) is None:
        return None
    limit = float(high) * (1.0 + margin)
    if not (math.isfinite(limit) and limit > 0):
        raise Unusable(f"the registered speed {high!r} is none")
    own = launches.of_whole_stage(evidence)
    mean = launches.together([own], launches.launch_noise(evidence.noise, None), 0.95)
    said = f"{mean.value:,.0f} tokens/s/GPU, where at most {float(high):,.0f} was forecast, {margin:.0%} let pass"
    return _Result(mean.value, limit, mean.low > limit, "tokens/s/GPU", mean.n, own.window, said)


def _loss(evidence: Evidence, forecast: Mapping[str, Any], margin: float) -> _Result | None:
    """Compare the held-out loss at the end with the lower end of its band; None where no loss was forecast."""
    low = (forecast.get("held_out_loss") or {}).get("low")
    if low is None:
        return None
    if not math.isfinite(float(low)):
        raise Unusable(f"the registered loss {low!r} is none")
    loss, step, _ = frames.held_out_loss(evidence, evidence.stage.name, at="end")
    if step < evidence.stage.last_step:
        raise Unusable(f"the last held-out loss is of step {step}, not of the last, {evidence.stage.last_step}")
    limit = float(low) - margin
    said = f"a held-out loss of {loss:.4f}, where at least {float(low):.4f} was forecast, {margin:g} let pass"
    return _Result(loss, limit, loss < limit, "nats", 1, f"held-out set at step {step}", said)
