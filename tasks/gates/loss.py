"""Gates on the loss: what was learnt at this scale is what was to be expected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks import statistics
from tasks.gates import frames
from tasks.gates.core import Check, Evidence, Outcome, Undecided, Unusable, gate


@gate(when="end", needs=("held_out",))
def loss_near_baseline(evidence: Evidence, *, eps: float = 0.01, confidence: float = 0.95) -> Check:
    """The held-out loss is no worse than the stored reference curve, or than the forecast where there is none."""
    name = evidence.stage.name
    loss, step, tokens = frames.held_out_loss(evidence, name, at="end")
    if evidence.moment == "end" and step < evidence.stage.last_step:
        raise Unusable(
            f"the last held-out loss of {name} is of step {step}, not of its last, {evidence.stage.last_step}"
        )
    if evidence.baseline is not None:
        return _against_curve(evidence, evidence.baseline, loss, step, tokens, eps, confidence)
    return _against_forecast(evidence, loss, step, eps)


def _against_curve(
    evidence: Evidence, baseline: Mapping[str, Any], loss: float, step: int, tokens: int, eps: float, confidence: float
) -> Check:
    """Non-inferiority to the mean of reference runs, after what the other batch explains (GATES 2.4, G4)."""
    if baseline.get("fingerprint") != evidence.stage.fingerprint:
        raise Unusable(
            f"the reference curve is of data {str(baseline.get('fingerprint'))[:12]!r}, "
            f"this stage trained on {evidence.stage.fingerprint[:12]!r}"
        )
    curves = [_at(run, tokens) for run in baseline["runs"]]
    n = len(curves)
    if n < 2:
        raise Undecided(f"the reference has {n} run, so its own spread is unknown; `scaleup calibrate` adds more")
    values = np.array([value for value, _ in curves])
    slope = float(np.mean([slope for _, slope in curves]))
    shift, shift_sd = statistics.batch_shift(
        slope, float(baseline["batch_tokens"]), evidence.stage.batch_tokens, statistics.critical_batch(tokens)
    )
    excess = loss - float(values.mean()) - shift
    spread = max(float(values.std(ddof=1)), statistics.SIGMA_RUN)
    se = math.sqrt(spread**2 * (1 + 1 / n) + shift_sd**2)
    reach = statistics.t_quantile(confidence, n - 1) * se
    decision = statistics.decide(excess - reach, excess + reach, eps, better="lower")
    outcome = {"pass": Outcome.PASS, "fail": Outcome.FAIL, "more": Outcome.NEED_MORE_DATA}[decision]
    return Check(
        "loss_near_baseline",
        outcome,
        f"the held-out loss {loss:.4f} is {excess:+.4f} nats ({excess - reach:+.4f} to {excess + reach:+.4f}) from {n} "
        f"reference runs at the same tokens, {shift:+.4f} allowed for the batch; at most {eps:+g} is asked",
        estimate=excess,
        interval=(excess - reach, excess + reach),
        limit=eps,
        unit="nats",
        n=n,
        window=f"held-out set at step {step}, {tokens:,} tokens",
        against=f"stored reference curve, {n} runs on the same data",
        method="one-sided non-inferiority at either end of the interval; t on the reference runs' spread",
        next_step="" if outcome is Outcome.PASS else "compare the loss curves; more reference runs narrow the interval",
    )


def _at(run: Mapping[str, Any], tokens: int) -> tuple[float, float]:
    """Return a reference run's loss at ``tokens``, linear in ln tokens, and its slope -dL/dlnD there."""
    x, y = np.log(np.asarray(run["tokens"], dtype=float)), np.asarray(run["held_out_loss"], dtype=float)
    at = math.log(tokens)
    if (
        x.size < 2
        or x.shape != y.shape
        or not (np.isfinite(x).all() and np.isfinite(y).all() and (np.diff(x) > 0).all())
    ):
        raise Unusable("a reference curve needs two or more finite points with rising tokens")
    if not x[0] - 0.01 <= at <= x[-1] + 0.01:
        raise Unusable(
            f"the reference curve spans {math.exp(x[0]):,.0f} to {math.exp(x[-1]):,.0f} tokens, not {tokens:,}"
        )
    left = int(np.clip(np.searchsorted(x, at) - 1, 0, x.size - 2))
    return float(np.interp(at, x, y)), float(-(y[left + 1] - y[left]) / (x[left + 1] - x[left]))


def _against_forecast(evidence: Evidence, loss: float, step: int, eps: float) -> Check:
    """Inside the band registered before the stage started, and lower than at its start."""
    name = evidence.stage.name
    band = (evidence.forecast or {}).get("held_out_loss") or {}
    if band.get("high") is None:
        raise Unusable(
            f"there is no stored reference curve for {name}'s data, and no loss was forecast for it "
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
        against="the forecast registered before the stage started (there is no stored reference curve)",
        method="the forecast's 90% band plus eps, and below the start; the fixed set adds no sampling noise",
        next_step="" if good else "compare this stage's loss with the one before: learning rate, batch, data order",
    )
