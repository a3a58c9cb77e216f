"""What a stage should show, from the records of the stages before it and from prices: speed, loss, time, cost.

Never from the cluster's network or from the formula that models a step: a forecast that knew them would only show
that the model agrees with itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tasks import statistics
from tasks.gates import frames, launches, scaling
from tasks.gates.core import EarlierStage, Evidence, Unusable
from tasks.plan import Ladder, StagePlan

UNKNOWN: dict[str, Any] = {"median": None, "low": None, "high": None}
QUANTILES = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99)
"""Points of a predictive that are registered, so that its score can say which quantile was reached."""
MTBF_NODES = 128  # of the job whose time between failures was measured: 1024 GPUs (GATES 5)


def throughput(evidence: Evidence) -> tuple[dict[str, Any], scaling.Outlook | None]:
    """Return the forecast of tokens/s/GPU (median, 90% interval) and the predictive behind it."""
    said: dict[str, Any] = {"unit": "tokens/s/GPU", "probability": 0.9}
    try:
        points = launches.points(evidence)
        outlook = scaling.predict(points, launches.newest(points).facts, evidence.stage)
    except (Unusable, ValueError) as reason:
        return {**said, **UNKNOWN, "says": f"unknown: {reason}"}, None
    low, median, high = (outlook.quantile(p) for p in (0.05, 0.5, 0.95))
    says = f"{outlook.method}; from {', '.join(f'{p.facts.name} {p.window}' for p in points)}"
    if evidence.stage.tier > max(p.facts.tier for p in points):
        says += "; it spans a network tier that no record has seen, which only the canary will"
    grid = [[p, outlook.quantile(p)] for p in QUANTILES]
    return {**said, "median": median, "low": low, "high": high, "quantiles": grid, "says": says}, outlook


def held_out_loss(evidence: Evidence, decided: StagePlan, ladder: Ladder) -> dict[str, Any]:
    """Return the forecast of the held-out loss after the stage's last step, with a 90% band."""
    said: dict[str, Any] = {"unit": "nats", "probability": 0.9, "tokens": decided.tokens_last}
    planned = np.concatenate([np.full(s.steps, s.batch_sequences, dtype=float) for s in decided.own_spans])
    planned *= decided.recipe.sequence_length
    try:
        step_tokens, after, loss, source = _curve(evidence, decided, ladder)
        found = statistics.forecast_loss(step_tokens, after, loss, planned)
    except (Unusable, ValueError) as reason:
        return {**said, **UNKNOWN, "says": f"unknown: {reason}"}
    says = (
        f"between a line in ln tokens ({found.line:.4f}) and a power law ({found.power:.4f}) through {found.points} "
        f"{source}; sd {found.bend_sd:.4f} for the curve's bend, {found.batch_sd:.4f} for the batch, "
        f"{found.fit_sd:.4f} for scatter"
    )
    sd = (found.high - found.median) / statistics.t_quantile(0.95, statistics.TAILS)
    grid = [[p, found.median + sd * statistics.t_quantile(p, statistics.TAILS)] for p in QUANTILES]
    band = {"median": found.median, "low": found.low, "high": found.high}
    return {**said, **band, "quantiles": grid, "says": says}


def _curve(evidence: Evidence, decided: StagePlan, ladder: Ladder) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Return tokens of each step so far, and losses with the number of steps they came after, of the stages continued.

    Held-out losses where there are enough of them, else training losses moved to where the held-out ones lie.
    """
    chain = _continued(decided, ladder)
    if not chain:
        raise Unusable(f"{decided.name} goes on from no stage of this run")
    if ladder.stage(chain[0]).start.kind == "weights":
        raise Unusable(f"{chain[0]} started from given weights, and what they had learnt is in no record")
    steps = _joined([_own(evidence.earlier[name]) for name in chain])
    tokens = frames.numbers(steps, "tokens", "steps of the stages before")
    loss = frames.numbers(steps, "loss", "steps of the stages before")
    step_tokens = np.diff(tokens, prepend=0.0)
    if (step_tokens <= 0).any():
        raise Unusable("the tokens of the stages before do not rise from step to step")
    number = steps["step"].to_numpy()
    rows = _joined([evidence.earlier[name].held_out for name in chain])
    rows = rows[rows["step"].isin(number)]
    seen = np.searchsorted(number, rows["step"].to_numpy()) + 1
    held = pd.to_numeric(rows["loss"], errors="coerce").to_numpy(dtype=float)
    seen, held = seen[np.isfinite(held)], held[np.isfinite(held)]
    recent = tokens[seen - 1] >= tokens[-1] / 2
    if recent.sum() >= 3 and (tokens[seen - 1] >= tokens[-1] / 4).sum() >= 4:
        return step_tokens, seen, held, "held-out losses"
    if not recent.any():
        raise Unusable("the stages before have no held-out loss in their last doubling of tokens")
    offset = float((held - np.interp(seen, np.arange(1, loss.size + 1), _smooth(loss)))[recent].mean())
    return step_tokens, np.arange(1, loss.size + 1), loss + offset, f"training losses moved by {offset:+.4f}"


def _continued(decided: StagePlan, ladder: Ladder) -> list[str]:
    """Return the names of the stages whose training a stage goes on with, oldest first."""
    names: list[str] = []
    while decided.previous is not None:
        names.insert(0, decided.previous)
        decided = ladder.stage(decided.previous)
    return names


def _own(stage: EarlierStage) -> pd.DataFrame:
    """Return a stage's records without what it only replayed."""
    return stage.steps[stage.steps["phase"] != "replay"]


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Return rows of consecutive stages, each step once: what a later stage did itself counts."""
    filled = [part for part in parts if len(part)]
    if not filled:
        raise Unusable("the stages before have no records")
    return pd.concat(filled).drop_duplicates("step", keep="last").sort_values("step", kind="stable")


def _smooth(loss: np.ndarray) -> np.ndarray:
    """Return a moving mean over 11 steps, shorter at the ends."""
    ones = np.ones(min(11, loss.size))
    return np.asarray(np.convolve(loss, ones, "same") / np.convolve(np.ones_like(loss), ones, "same"))


def spending(decided: StagePlan, ladder: Ladder, speed: Mapping[str, Any]) -> dict[str, Any]:
    """Return wall seconds, GPU-hours and cost of the stage on real GPUs; a rehearsal's are those it stands for."""
    tokens = stage_tokens(decided, ladder)
    price = decided.cluster.price_per_gpu_hour
    wall = {
        key: None if speed[other] is None else tokens / (speed[other] * decided.gpus)
        for key, other in (("median", "median"), ("low", "high"), ("high", "low"))
    }
    hours = {key: None if v is None else v * decided.gpus / 3600.0 for key, v in wall.items()}
    cost = {key: None if v is None else v * price for key, v in hours.items()}
    limit = decided.real.stage.hours
    says = f"{tokens:,.0f} tokens at the forecast speed; the job is limited to {limit:g} h"
    if wall["median"] is None:
        says = f"unknown; the job is limited to {limit:g} h, so at most {decided.gpu_hours:,.0f} GPU-hours"
    elif wall["median"] > 3600.0 * limit:
        says += f", which is less than the {wall['median'] / 3600.0:.1f} h forecast: it will be cut short"
    return {
        "tokens": tokens,
        "wall_seconds": wall,
        "gpu_hours": {**hours, "at_most": decided.gpu_hours},
        "cost": {**cost, "at_most": decided.cost, "currency": "US dollars", "price_per_gpu_hour": price},
        "nature": "modelled" if decided.emulated else "forecast",
        "says": says,
    }


def stage_tokens(decided: StagePlan, ladder: Ladder) -> float:
    """Return the tokens that the real stage puts through its GPUs, the replay's among them."""
    real = decided.real
    own = sum(sequences * steps for sequences, steps in real.segments) * real.recipe.sequence_length
    replayed = decided.steps_in("replay") > 0 and decided.previous is not None
    again = ladder.stage(decided.previous or "").throughput_batch_tokens * real.hand_over_steps if replayed else 0
    return float(own + again)


def uninterrupted(decided: StagePlan, wall: Mapping[str, Any]) -> dict[str, Any]:
    """Return the failures to be expected, with a 90% interval of the count, and the chance of none: exp(-T / M).

    M by nodes from a published rate; failures as a Poisson process, though real ones come in bursts (GATES 5).
    """
    mtbf = statistics.PLANNED_MTBF_HOURS * MTBF_NODES / decided.nodes
    hours = wall["median"] / 3600.0 if wall["median"] is not None else decided.real.stage.hours
    low, high = statistics.poisson_interval(hours / mtbf)
    says = (
        f"{hours:,.1f} h / {mtbf:,.0f} h between failures on {decided.nodes} nodes; a job of {MTBF_NODES} nodes fails "
        f"every {statistics.PLANNED_MTBF_HOURS:g} h in Meta's published records; ours are too few yet"
    )
    expected = {"expected": hours / mtbf, "low": low, "high": high}
    expected["probability"] = statistics.uninterrupted(hours, mtbf)
    return {**expected, "mtbf_hours": mtbf, "hours": hours, "says": says}


def price_of_error(
    evidence: Evidence, decided: StagePlan, outlook: scaling.Outlook | None, spent: Mapping[str, Any]
) -> dict[str, Any]:
    """Return GATES 7.3's three numbers: the chance to be right, what an error costs, what a probe would cost."""
    unknown = {"p_right": None, "error_gpu_hours": None, "probe_gpu_hours": None}
    if outlook is None:
        return {**unknown, "says": "unknown before anything was measured"}
    points = launches.points(evidence)
    last = launches.newest(points)
    policy = decided.gates.get("forecast_efficiency", {})
    bar, name = float(policy.get("at_least", 0.9)), str(policy.get("reference", last.facts.name))
    reference = next((p for p in points if p.facts.name == name), last)
    median = outlook.quantile(0.5)
    steps = decided.real.canary_steps + (decided.real.hand_over_steps if decided.steps_in("replay") else 0)
    canary = steps * launches.per_gpu(evidence.stage) / median * decided.gpus / 3600.0
    probe = decided.real.canary_steps * last.step_seconds * last.facts.gpus / 3600.0
    return {
        "p_right": outlook.above(bar * reference.throughput),
        "error_gpu_hours": canary,
        "whole_stage_gpu_hours": spent["gpu_hours"]["median"],
        "probe_gpu_hours": probe,
        "says": (
            f"the chance of at least {bar:.0%} of {reference.facts.name}; a wrong start costs {canary:,.1f} GPU-hours "
            f"where the canary stops it, a probe of {decided.real.canary_steps} steps on {last.facts.gpus} GPUs "
            f"{probe:,.1f}"
        ),
    }
