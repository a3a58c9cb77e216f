"""Gates on speed: measured steadily, scaling as asked, and likely to go on scaling."""

from __future__ import annotations

import math

import numpy as np

from tasks import statistics
from tasks.gates import frames, scaling
from tasks.gates.core import Check, Evidence, Outcome, Unusable, gate

UNIT = "tokens/s/GPU"
BATCH_MEANS = "batch means, t interval, launch variance added"
OUTCOMES = {"pass": Outcome.PASS, "fail": Outcome.FAIL, "more": Outcome.NEED_MORE_DATA}


@gate(when="end", needs=("step_seconds",))
def steady_throughput(
    evidence: Evidence,
    *,
    half_width: float = 0.02,
    stall: float = 1.03,
    launch_sd: float = statistics.LAUNCH_SD,
    confidence: float = 0.95,
) -> Check:
    """The stage's throughput is known to within a few per cent."""
    mean, seconds, window = frames.measured(evidence, evidence.stage, launch_sd=launch_sd, confidence=confidence)
    over_median = float(seconds.mean() / np.median(seconds))
    known = mean.half_width <= half_width
    said = f"{mean.value:,.0f} {UNIT} ±{mean.half_width:.1%} over {mean.n} steps; at most ±{half_width:.1%} is asked"
    if over_median > stall:
        said += f"; warning: the mean step is {over_median:.2f} times the median, so some steps stall"
    return Check(
        "steady_throughput",
        Outcome.PASS if known else Outcome.NEED_MORE_DATA,
        said,
        estimate=mean.value,
        interval=(mean.low, mean.high),
        limit=mean.value * (1 - half_width),
        unit=UNIT,
        n=mean.n,
        window=window,
        method=f"{BATCH_MEANS} ({mean.batches} batches); limit: where the interval may reach down to",
        next_step="" if known else "run more steps at this size, or find out why single steps differ so much",
    )


@gate(when="end", needs=("step_seconds",))
def scaling_efficiency(
    evidence: Evidence,
    *,
    reference: str,
    at_least: float = 0.90,
    launch_sd: float = statistics.LAUNCH_SD,
    confidence: float = 0.95,
) -> Check:
    """A GPU of this stage does at least the asked part of the work of a GPU of the reference stage."""
    base = frames.earlier(evidence, reference, "reference stage")
    now, _, window = frames.measured(evidence, evidence.stage, launch_sd=launch_sd, confidence=confidence)
    then, _, _ = frames.measured(base, base.facts, launch_sd=launch_sd, confidence=confidence)
    share = statistics.ratio(now, then, confidence=confidence)
    outcome = OUTCOMES[statistics.decide(share.low, share.high, at_least)]
    kind = scaling.kind(base.facts, evidence.stage)
    said = (
        f"{now.value:,.0f} {UNIT} is {share.value:.1%} ({share.low:.1%} to {share.high:.1%}) of {reference}'s "
        f"{then.value:,.0f}, {kind}; at least {at_least:.0%} is asked"
    )
    return Check(
        "scaling_efficiency",
        outcome,
        said,
        estimate=share.value,
        interval=(share.low, share.high),
        limit=at_least,
        unit=f"of {reference}'s {UNIT}",
        n=share.n,
        window=window,
        against=f"{reference} ({kind})",
        method=f"ratio of means; {BATCH_MEANS} ({share.batches} batches or more each)",
        next_step={
            Outcome.PASS: "",
            Outcome.FAIL: "see where a step's time goes (communication first), or change layout or batch at this scale",
            Outcome.NEED_MORE_DATA: "the interval spans the bar: more steps, or a second launch, would decide",
        }[outcome],
    )


@gate(when="entry", needs=("step_seconds",))
def forecast_efficiency(
    evidence: Evidence,
    *,
    reference: str,
    at_least: float = 0.90,
    pass_at: float = 0.95,
    fail_at: float = 0.05,
    superlinear: float = 1.05,
    present_at_least: float = 0.95,
) -> Check:
    """This stage will, in all likelihood, reach the asked part of the reference stage's throughput a GPU."""
    base = frames.earlier(evidence, reference, "reference stage")
    points = scaling.points(evidence)
    scaling.refuse_superlinear(points, superlinear)
    kind = scaling.kind(base.facts, evidence.stage)
    outlook = scaling.predict(points, base.facts, evidence.stage)
    now = next(p.throughput for p in points if p.facts.name == reference)
    chance = outlook.above(at_least * now)
    outcome = Outcome.PASS if chance >= pass_at else Outcome.FAIL if chance <= fail_at else Outcome.NEED_MORE_DATA
    low, middle, high = (outlook.quantile(p) / now for p in (0.05, 0.5, 0.95))
    said = (
        f"{evidence.stage.gpus} GPUs are expected at {middle:.1%} ({low:.1%} to {high:.1%}) of {reference}'s "
        f"{now:,.0f} {UNIT}, {kind}; the chance of at least {at_least:.0%} is {chance:.1%}, {pass_at:.0%} is asked"
    )
    late = scaling.behind_forecast(evidence, points)
    if late is not None and late < present_at_least:
        outcome = Outcome.FAIL
        said += f"; {points[-1].facts.name} itself reached only {late:.1%} of what had been forecast for it"
    if evidence.stage.tier > max(p.facts.tier for p in points):
        said += "; it spans a network tier that no record has seen"
        said += ", so the canary decides" if outcome is Outcome.PASS else ", which records cannot speak for"
    return Check(
        "forecast_efficiency",
        outcome,
        said,
        estimate=middle,
        interval=(low, high),
        limit=at_least,
        unit=f"of {reference}'s {UNIT}",
        n=len(points),
        window=", ".join(f"{p.facts.name} {p.window}" for p in points),
        against=f"{reference} ({kind})",
        method=f"{outlook.method}; median and 90% interval; P(at least the limit) = {chance:.4f}",
        next_step={
            Outcome.PASS: "",
            Outcome.FAIL: "mend what slows the larger scale (network, layout, batch), or ask less of it in the recipe",
            Outcome.NEED_MORE_DATA: f"measure a size between {reference} and {evidence.stage.name}, or a second launch",
        }[outcome],
    )


@gate(when="early", needs=("step_seconds",))
def canary(
    evidence: Evidence,
    *,
    at_least: float = 0.95,
    lower_at_least: float = 0.92,
    launch_sd: float = statistics.LAUNCH_SD,
    confidence: float = 0.95,
) -> Check:
    """The first steps at full size run as fast as was forecast."""
    expected = scaling.registered(evidence.forecast)
    if expected is None:
        raise Unusable(f"no throughput was forecast for {evidence.stage.name} before it started")

    def ask(phases: tuple[str, ...]) -> Check:
        mean, _, window = frames.measured(
            evidence, evidence.stage, phases=phases, launch_sd=launch_sd, confidence=confidence
        )
        return _canary_check(mean, expected, window, at_least, lower_at_least)

    check = ask(("canary",))
    own = evidence.steps["phase"].isin(["canary", "train"]).sum()
    # A single spike may leave 20 steps undecided; the steps that follow decide, as they come in.
    return ask(("canary", "train")) if check.outcome is Outcome.NEED_MORE_DATA and own > check.n else check


def _canary_check(mean: statistics.Mean, expected: float, window: str, at_least: float, lower_at_least: float) -> Check:
    share, low, high = mean.value / expected, mean.low / expected, mean.high / expected
    if not all(math.isfinite(v) for v in (share, low, high)):
        raise Unusable(f"{mean.n} canary steps give no finite interval")
    good = share >= at_least and low >= lower_at_least
    outcome = Outcome.PASS if good else Outcome.FAIL if high < at_least else Outcome.NEED_MORE_DATA
    said = (
        f"{mean.value:,.0f} {UNIT} over {mean.n} steps is {share:.1%} ({low:.1%} to {high:.1%}) of the "
        f"{expected:,.0f} forecast; at least {at_least:.0%}, and {lower_at_least:.0%} at the low end, is asked"
    )
    return Check(
        "canary",
        outcome,
        said,
        estimate=share,
        interval=(low, high),
        limit=at_least,
        unit=f"of the forecast {UNIT}",
        n=mean.n,
        window=window,
        against="the forecast registered before the stage started",
        method=f"{BATCH_MEANS} ({mean.batches} batches)",
        next_step="" if good else "stop before the rest is spent; compare step phases with the stage before",
    )
