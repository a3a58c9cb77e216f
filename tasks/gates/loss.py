"""Gates on the loss: what was learnt at this scale is what was to be expected."""

from __future__ import annotations

import math
from typing import Literal

from tasks import statistics
from tasks.gates import frames, reference
from tasks.gates.core import Check, Evidence, Outcome, Unusable, gate
from tasks.gates.thresholds import Confidence, Positive


@gate(when="end", needs=("held_out",))
def loss_near_baseline(
    evidence: Evidence,
    *,
    eps: Positive = 0.01,
    confidence: Confidence = 0.95,
    against: Literal["baseline", "forecast"] = "baseline",
) -> Check:
    """The held-out loss is no worse than the stored reference runs', or than the forecast where there are none."""
    name = evidence.stage.name
    loss, step, tokens = frames.held_out_loss(evidence, name, at="end")
    if evidence.moment == "end" and step < evidence.stage.last_step:
        raise Unusable(
            f"the last held-out loss of {name} is of step {step}, not of its last, {evidence.stage.last_step}"
        )
    if against == "forecast":
        return _against_forecast(evidence, loss, step, eps)
    if evidence.declared:
        return _not_comparable(evidence, loss, step)
    if evidence.baseline is None or not reference.reaches(evidence.baseline, evidence, tokens):
        return _against_forecast(evidence, loss, step, eps)
    return _against_runs(reference.excess(evidence, evidence.baseline, loss, step, tokens), loss, eps, confidence)


def _not_comparable(evidence: Evidence, loss: float, step: int) -> Check:
    """Earlier runs learnt something else, by the experiment's own word: no comparison, and no reproach."""
    declared = "; ".join(f"{what}: {why}" for what, why in evidence.declared.items())
    return Check(
        "loss_near_baseline",
        Outcome.NOT_COMPARABLE,
        f"the held-out loss ended at {loss:.4f}; the experiment declares a change against the baseline ({declared}), "
        "so it is compared with nothing",
        estimate=loss,
        unit="nats",
        n=1,
        window=f"held-out set at step {step}",
        against="nothing, by a declared change",
        method="none",
        next_step="store a new baseline of the changed recipe, or write `against: forecast`",
    )


def _against_runs(found: reference.Excess, loss: float, eps: float, confidence: float) -> Check:
    """Non-inferiority to the mean of reference runs (GATES G4)."""
    reach = statistics.t_quantile(confidence, found.df) * found.se
    low, high = found.nats - reach, found.nats + reach
    decision = statistics.decide(low, high, eps, better="lower")
    outcome = {"pass": Outcome.PASS, "fail": Outcome.FAIL, "more": Outcome.NEED_MORE_DATA}[decision]
    return Check(
        "loss_near_baseline",
        outcome,
        f"the loss, held-out {loss:.4f} at the end, is {found.nats:+.4f} nats ({low:+.4f} to {high:+.4f}) from "
        f"{found.runs} reference runs, {found.shift:+.4f} allowed for the batch; at most {eps:+g} is asked",
        estimate=found.nats,
        interval=(low, high),
        limit=eps,
        unit="nats",
        n=found.runs,
        window=found.window,
        against=f"stored reference curve, {found.runs} runs on the same data",
        method=f"one-sided non-inferiority at either end of the interval; {found.how}",
        next_step="" if outcome is Outcome.PASS else "compare the loss curves; more reference runs narrow the interval",
        inputs={"loss_sd": found.noise},
    )


def _against_forecast(evidence: Evidence, loss: float, step: int, eps: float) -> Check:
    """Inside the band registered before the stage started, and lower than at its start."""
    name = evidence.stage.name
    band = (evidence.forecast or {}).get("held_out_loss") or {}
    if band.get("high") is None:
        raise Unusable(
            f"there is no stored reference curve for {name}'s data and tokens, and no loss was forecast for it "
            f"({band.get('says', 'no forecast is registered')})"
        )
    low, median, high = (float(band[key]) for key in ("low", "median", "high"))
    if not (math.isfinite(low) and low <= median <= high < math.inf):
        raise Unusable(f"the registered band {low:g}..{high:g} around {median:g} is none")
    start, _, _ = frames.held_out_loss(evidence, name, at="start")
    limit = min(high + eps, start)
    good = loss <= limit if limit < start else loss < start
    said = (
        f"the held-out loss ended at {loss:.4f}; {median:.4f} ({low:.4f} to {high:.4f}) was forecast, "
        f"and it started at {start:.4f}; at most {limit:.4f} is asked"
    )
    if limit == start:
        said += "; the band reaches above the start, so this shows only that the loss fell"
    if loss < low:
        said += f"; {low - loss:.4f} below the band: see that no held-out text is trained on"
    return Check(
        "loss_near_baseline",
        Outcome.PASS if good else Outcome.FAIL,
        said,
        estimate=loss,
        limit=limit,
        unit="nats",
        n=1,
        window=f"held-out set at step {step}",
        against="the forecast registered before the stage started (there is no stored reference curve at its tokens)",
        method="the forecast's 90% band plus eps, and below the start; the fixed set adds no sampling noise",
        next_step="" if good else "compare this stage's loss with the one before: learning rate, batch, data order",
    )
