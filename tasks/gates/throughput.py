"""Gates on speed: measured steadily, without stalls, and as fast at full size as was forecast."""

from __future__ import annotations

import math

import numpy as np

from tasks.gates import launches, next_measurement, scaling
from tasks.gates.core import Check, Evidence, Measurement, Outcome, Unusable, gate
from tasks.gates.launches import LaunchNoise
from tasks.gates.thresholds import Confidence, Excess, Positive, Ratio, RelativeSd

UNIT = "tokens/s/GPU"
BATCH_MEANS = "batch means, t interval, launch variance added"
OUTCOMES = {"pass": Outcome.PASS, "fail": Outcome.FAIL, "more": Outcome.NEED_MORE_DATA}


@gate(when="end", needs=("step_seconds",))
def steady_throughput(
    evidence: Evidence,
    *,
    half_width: Positive = 0.02,
    launch_sd: RelativeSd | None = None,
    confidence: Confidence = 0.95,
) -> Check:
    """The stage's throughput is known to within a few per cent."""
    noise = launches.launch_noise(evidence.noise, launch_sd)
    own = launches.of_whole_stage(evidence)
    seen = launches.same_size(own, evidence)
    mean = launches.together(seen, noise, confidence)
    known = mean.half_width <= half_width
    wrong = next_measurement.wrong_start(evidence.following, mean.value)
    buy = None if known else next_measurement.another_launch(
        [seen], noise, lambda sides: launches.together(sides[0], noise, confidence).half_width <= half_width, wrong
    )  # fmt: skip
    return Check(
        "steady_throughput",
        Outcome.PASS if known else Outcome.NEED_MORE_DATA,
        f"{mean.value:,.0f} {UNIT} ±{mean.half_width:.1%} over {mean.n} steps{_of(len(seen))}; at most "
        f"±{half_width:.1%} is asked",
        estimate=mean.value,
        interval=(mean.low, mean.high),
        limit=mean.value * (1 - half_width),
        unit=UNIT,
        n=mean.n,
        window=launches.window(seen),
        method=f"{BATCH_MEANS} ({mean.batches} batches); limit: where the interval may reach down to",
        next_step="" if buy is None else f"{buy.says}, or more steps; or find out why single steps differ so much",
        measurement=buy,
        inputs={"launch_sd": noise.says},
    )


def _of(count: int) -> str:
    return f" of {count} launches" if count > 1 else ""


@gate(when="end", needs=("step_seconds",))
def stall_free(evidence: Evidence, *, at_most: Excess = 1.03) -> Check:
    """No steps stall: the mean step takes hardly longer than the median one."""
    own = launches.of_whole_stage(evidence)
    seconds = own.seconds if own.seconds is not None else np.empty(0)
    median = float(np.median(seconds))
    over = float(seconds.mean()) / median
    slow = int((seconds > 1.5 * median).sum())
    good = over <= at_most
    return Check(
        "stall_free",
        Outcome.PASS if good else Outcome.FAIL,
        f"the mean step takes {over:.3f} times the median one, {slow} of {seconds.size} more than half as long again; "
        f"at most {at_most:g} times is asked",
        estimate=over,
        limit=at_most,
        unit="times the median step",
        n=int(seconds.size),
        window=own.window,
        method="mean over median of the step seconds (GATES G2): a stall in every tenth step leaves the median alone",
        next_step="" if good else "look at which steps are slow: data loading, garbage collection, checkpoints, a node",
    )


@gate(when="early", needs=("step_seconds",), ordered=(("lower_at_least", "at_least"), ("at_least", "at_most")))
def canary(
    evidence: Evidence,
    *,
    at_least: Ratio = 0.95,
    lower_at_least: Ratio = 0.92,
    at_most: Excess = 1.25,
    launch_sd: RelativeSd | None = None,
    confidence: Confidence = 0.95,
) -> Check:
    """The first steps at full size run as fast as was forecast."""
    expected = scaling.registered(evidence.forecast)
    if expected is None:
        raise Unusable(f"no throughput was forecast for {evidence.stage.name} before it started")
    noise = launches.launch_noise(evidence.noise, launch_sd)
    bars = (at_least, lower_at_least, at_most)
    check = _canary(evidence, ("canary",), expected, bars, noise, confidence)
    own = evidence.steps["phase"].isin(["canary", "train"]).sum()
    # A single spike may leave 20 steps undecided; the steps that follow decide, as they come in.
    if check.outcome is Outcome.NEED_MORE_DATA and own > check.n:
        return _canary(evidence, ("canary", "train"), expected, bars, noise, confidence)
    return check


def _canary(
    evidence: Evidence,
    phases: tuple[str, ...],
    expected: float,
    bars: tuple[float, float, float],
    noise: LaunchNoise,
    confidence: float,
) -> Check:
    at_least, lower_at_least, at_most = bars
    own = launches.of_stage(evidence, evidence.stage, phases)
    mean = launches.together([own], noise, confidence)
    share, low, high = mean.value / expected, mean.low / expected, mean.high / expected
    if not all(math.isfinite(v) for v in (share, low, high)):
        raise Unusable(f"{mean.n} canary steps give no finite interval")
    if low > at_most:
        raise Unusable(
            f"{mean.value:,.0f} {UNIT} is {share:.3g} times the {expected:,.0f} forecast, more than {at_most:g} times: "
            "another unit or other work than was forecast"
        )
    good = share >= at_least and low >= lower_at_least
    outcome = Outcome.PASS if good else Outcome.FAIL if high < at_least else Outcome.NEED_MORE_DATA
    return Check(
        "canary",
        outcome,
        f"{mean.value:,.0f} {UNIT} over {mean.n} steps is {share:.1%} ({low:.1%} to {high:.1%}) of the "
        f"{expected:,.0f} forecast; at least {at_least:.0%}, and {lower_at_least:.0%} at the low end, is asked",
        estimate=share,
        interval=(low, high),
        limit=at_least,
        unit=f"of the forecast {UNIT}",
        n=mean.n,
        window=own.window,
        against="the forecast registered before the stage started",
        method=f"{BATCH_MEANS} ({mean.batches} batches)",
        next_step="" if good else "stop before the rest is spent; compare step phases with the stage before",
        measurement=_more(evidence, own.step_seconds) if outcome is Outcome.NEED_MORE_DATA else None,
        inputs={"launch_sd": noise.says},
    )


def _more(evidence: Evidence, step_seconds: float) -> Measurement:
    """Return the steps to come, as many as a probe has; a person where the stage has no more."""
    left = evidence.stage.last_step - int(evidence.steps["step"].max())
    if left > 0:
        return next_measurement.more_steps(evidence.stage, min(left, next_measurement.STEPS), step_seconds)
    return next_measurement.person("all steps are in and still do not decide; somebody looks at the slow ones")
