"""A forecast scored after its stage: for each quantity what was foretold, what came, and how surprising that is.

``score.json``. What was not foretold is listed with its outcome alone; what a rehearsal cannot show says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tasks.errors import ScaleupError
from tasks.evidence import evidence
from tasks.gates import Evidence, Unusable, frames
from tasks.plan import StagePlan
from tasks.run import plan_of
from tasks.stage_dir import StageDir, read_json, write_json

PHASES: tuple[tuple[str, ...], ...] = (("train",), ("canary", "train"), ("canary",))
"""Which steps speed is read from, the first that have enough: a stage stopped at its canary has no others."""

INDEPENDENT = ("throughput", "held_out_loss", "failures")
"""Hours and cost follow from the throughput: to count them as well would count one hit four times."""


@dataclass(frozen=True)
class Scored:
    """One quantity: forecast (median and 90% interval), outcome, and how the two compare.

    ``error`` is outcome / median - 1; ``quantile`` the share of the predictive below the outcome, None where no
    predictive was registered; ``nature`` real, measured or modelled.
    """

    quantity: str
    unit: str
    median: float | None = None
    low: float | None = None
    high: float | None = None
    outcome: float | None = None
    inside: bool | None = None
    error: float | None = None
    quantile: float | None = None
    nature: str = ""
    says: str = ""


def score(stage: StageDir) -> dict[str, Any] | None:
    """Score the stage's registered forecast, write ``score.json`` and return it; None where nothing ran or was said."""
    said = read_json(stage.forecast)
    if said is None or not stage.config.exists() or not stage.metrics.exists():
        return None
    try:
        seen, decided = evidence(stage, "end"), plan_of(stage)
    except ScaleupError:
        return None  # the gates say what is wrong with the records
    if seen.steps.empty:
        return None
    rows = scored(said, seen, decided)
    value = {"stage": stage.name, "time": time.time(), "probability": 0.9, "quantities": [asdict(row) for row in rows]}
    write_json(stage.score, value)
    return value


def scored(said: Mapping[str, Any], seen: Evidence, decided: StagePlan) -> list[Scored]:
    """Return every quantity of a forecast against what the records show."""
    speed = _throughput(said.get("throughput") or {}, seen, "modelled" if decided.emulated else "measured")
    return [speed, _loss(said.get("held_out_loss") or {}, seen), *_spent(said, seen, decided), _failures(said, seen)]


def summary(stage: StageDir) -> dict[str, float]:
    """Return what MLflow lines stages up by: relative errors of speed and loss, share of intervals that held."""
    rows = {row["quantity"]: row for row in (read_json(stage.score) or {}).get("quantities", [])}
    named = {"throughput": "forecast_error_throughput", "held_out_loss": "forecast_error_held_out_loss"}
    errors = {name: rows.get(key, {}).get("error") for key, name in named.items()}
    found = {name: float(error) for name, error in errors.items() if error is not None}
    inside = [row["inside"] for key, row in rows.items() if key in INDEPENDENT and row.get("inside") is not None]
    return found | ({"forecasts_inside": sum(inside) / len(inside)} if inside else {})


def _throughput(said: Mapping[str, Any], seen: Evidence, nature: str) -> Scored:
    row = Scored("throughput", "tokens/s/GPU", *_band(said), nature=nature)
    reason = ""
    for phases in PHASES:
        try:
            mean, _, window = frames.measured(seen, seen.stage, phases=phases)
        except Unusable as unusable:
            reason = reason or f"unknown: {unusable}"
            continue
        return _against(row, mean.value, _grid(said), window)
    return replace(row, says=reason)


def _loss(said: Mapping[str, Any], seen: Evidence) -> Scored:
    row = Scored("held_out_loss", "nats", *_band(said), nature="real")
    try:
        loss, step, _ = frames.held_out_loss(seen, seen.stage.name, at="end")
    except Unusable as reason:
        return replace(row, says=f"unknown: {reason}")
    if step < seen.stage.last_step:
        return replace(row, says=f"unknown: the last held-out loss is of step {step}, not {seen.stage.last_step}")
    return _against(row, loss, _grid(said), f"held-out set at step {step}")


def _spent(said: Mapping[str, Any], seen: Evidence, decided: StagePlan) -> list[Scored]:
    """Return wall seconds, GPU-hours and cost. Their predictive is that of the throughput, turned round."""
    wall, nature, says = _wall(said, seen, decided)
    speeds = _grid(said.get("throughput") or {})
    tokens = float((said.get("spending") or {}).get("tokens") or 0.0)
    factors = {"wall_seconds": ("s", 1.0), "gpu_hours": ("GPU-hours", decided.gpus / 3600.0)}
    factors["cost"] = ("US dollars", decided.gpus / 3600.0 * decided.cluster.price_per_gpu_hour)
    found = []
    for key, (unit, factor) in factors.items():
        row = Scored(key, unit, *_band(said.get(key) or {}), nature=nature, says=says)
        # P(wall <= w) = P(speed >= tokens / (w GPUs)): the grid of speeds, fastest first
        grid = [(1 - p, factor * tokens / (speed * decided.gpus)) for p, speed in reversed(speeds) if speed > 0]
        found.append(row if wall is None else _against(row, wall * factor, grid if tokens else [], says))
    return found


def _wall(said: Mapping[str, Any], seen: Evidence, decided: StagePlan) -> tuple[float | None, str, str]:
    """Return the seconds that the stage took, as far as records tell, their nature, and where they are from."""
    seconds = seen.steps["step_seconds"].to_numpy(dtype=float)
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        return None, "unknown", "unknown: step_seconds are not all positive numbers"
    if int(seen.steps["step"].iloc[-1]) < seen.stage.last_step:
        return None, "unknown", f"unknown: the stage ended before its last step, {seen.stage.last_step}"
    if not decided.emulated:
        times = seen.steps["time"].to_numpy(dtype=float)
        if np.isfinite(times).all() and times[-1] > times[0]:
            return (
                float(times.max() - times.min() + seconds[0]),
                "measured",
                "from the first step's start to the last's end",
            )
        return float(seconds.sum()), "measured", "sum of the step seconds; records without a time"
    per_gpu = seen.steps["tokens_per_gpu_second"].to_numpy(dtype=float)
    tokens = float((said.get("spending") or {}).get("tokens") or 0.0)
    with np.errstate(all="ignore"):
        done = float((per_gpu * seconds).sum()) * decided.gpus
    if not tokens or not math.isfinite(done) or done <= 0:
        return None, "unknown", "unknown: no tokens_per_gpu_second is recorded"
    says = f"{seconds.size} rehearsed steps with replay and canary, carried to the real stage's {tokens:,.0f} tokens"
    return float(seconds.sum()) * tokens / done, "modelled", says


def _failures(said: Mapping[str, Any], seen: Evidence) -> Scored:
    expected = said.get("uninterrupted") or {}
    mean = expected.get("expected")
    row = Scored("failures", "failures", mean, expected.get("low"), expected.get("high"))
    begun = max(1, int(seen.steps["attempt"].max())) if "attempt" in seen.steps else 1
    if seen.stage.emulated:
        more = f"; its processes here were started {begun} times" if begun > 1 else ""
        return replace(row, says=f"not scored: GPUs that do not exist cannot fail{more}")
    count = begun - 1
    inside = expected["low"] <= count <= expected["high"] if mean is not None else None
    return replace(row, outcome=float(count), inside=inside, nature="measured", says="starts of the trainer less one")


def _band(said: Mapping[str, Any]) -> tuple[float | None, float | None, float | None]:
    """Return median, low and high as finite numbers, or None."""
    values = (said.get(key) for key in ("median", "low", "high"))
    median, low, high = (float(v) if isinstance(v, int | float) and math.isfinite(v) else None for v in values)
    return median, low, high


def _grid(said: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return the registered predictive as (share, value), rising; empty where none was registered."""
    return [(float(p), float(value)) for p, value in said.get("quantiles") or []]


def _against(row: Scored, outcome: float, grid: Sequence[tuple[float, float]], says: str) -> Scored:
    if not math.isfinite(outcome):
        return replace(row, says=f"unknown: {outcome} is no outcome")
    if row.median is None or row.low is None or row.high is None:
        return replace(row, outcome=outcome, says=f"{says}; nothing was forecast")
    inside = row.low <= outcome <= row.high
    error = outcome / row.median - 1.0 if row.median else None
    if error is not None and not math.isfinite(error):
        error = None
    quantile = float(np.interp(outcome, [v for _, v in grid], [p for p, _ in grid])) if grid else None
    return replace(row, outcome=outcome, inside=inside, error=error, quantile=quantile, says=says)
