"""What would decide an undecided gate, and its price beside that of being wrong (GATES 7.3): the cheapest first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from tasks import statistics
from tasks.gates import scaling
from tasks.gates.core import Evidence, Measurement, StageFacts
from tasks.gates.launches import Launch, LaunchNoise, alike, per_gpu, together

STEPS = 60  # of a probe: six batches of ten, the least that gives an interval worth the name (GATES 7.2)
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of what a probe may show
LIKELY = 0.5  # chance to decide from which on the cheapest probe is taken


def gpu_hours(gpus: int, step_seconds: float, steps: int = STEPS) -> float:
    """Return what some steps on some GPUs cost."""
    return steps * step_seconds * gpus / 3600.0


def wrong_start(target: StageFacts | None, throughput: float) -> float | None:
    """Return GPU-hours that a wrong start of ``target`` costs until its canary stops it; None where there is none."""
    if target is None or not target.steps_at_stake:
        return None
    return gpu_hours(target.gpus, per_gpu(target) / throughput, target.steps_at_stake)


def probe(gpus: int, step_seconds: float, wrong: float | None, what: str) -> Measurement:
    """Return a probe as a measurement; ``what`` says which, for a person."""
    return Measurement(
        "probe", gpus, STEPS, gpu_hours(gpus, step_seconds), wrong, f"{what}: {STEPS} steps on {gpus} GPUs"
    )


def person(what: str, *, gpus: int = 0, steps: int = 0, cost: float = 0.0, wrong: float | None = None) -> Measurement:
    """Return what a person has to look at or to start by hand, where no probe would decide."""
    return Measurement("person", gpus, steps, cost, wrong, what)


def more_steps(facts: StageFacts, steps: int, step_seconds: float) -> Measurement:
    """Return the steps that the stage takes next in any case."""
    says = f"the next {steps} steps of {facts.name}, which it takes anyway"
    return Measurement("more_steps", facts.gpus, steps, gpu_hours(facts.gpus, step_seconds, steps), None, says)


def another_launch(
    sides: Sequence[Sequence[Launch]],
    noise: LaunchNoise,
    decided: Callable[[Sequence[Sequence[Launch]]], bool],
    wrong: float | None,
    *,
    only: int | None = None,
) -> Measurement:
    """Return the cheapest probe at one of the sizes compared that would decide if it repeats what is known there.

    ``sides`` hold the launches of each size; ``only`` one of them can be probed, if it is given. Where none alone would
    decide, the one that narrows the most for its price.
    """
    options = []
    for index, launches in enumerate(sides):
        if only is not None and index != only:
            continue
        mean = together(launches, noise, 0.95)
        again = dataclasses.replace(launches[0], speed=_as_a_probe(launches[0], mean.value))
        after = [[*side, again] if at == index else list(side) for at, side in enumerate(sides)]
        narrowed = mean.se**2 - together([*launches, again], noise, 0.95).se ** 2
        seconds = per_gpu(launches[0].facts) / mean.value
        options.append((launches[0].facts, seconds, decided(after), narrowed / mean.value**2))
    facts, seconds, _, _ = min(
        options, key=lambda o: (not o[2], gpu_hours(o[0].gpus, o[1]) / (1.0 if o[2] else max(o[3], 1e-300)))
    )
    return probe(facts.gpus, seconds, wrong, f"another launch at the size of {facts.name}")


def _as_a_probe(launch: Launch, throughput: float) -> statistics.Mean:
    """Return what a probe of the size of ``launch`` would show that runs at ``throughput`` and is as noisy."""
    se = launch.speed.se / launch.speed.value * throughput * (launch.speed.n / STEPS) ** 0.5
    return dataclasses.replace(launch.speed, value=throughput, se=se, n=STEPS)


def towards(
    evidence: Evidence,
    points: Sequence[Launch],
    reference: StageFacts,
    decided: Callable[[Sequence[Launch]], bool],
    wrong: float | None,
) -> Measurement:
    """Return the cheapest probe that is likely to decide a forecast of the stage, or else the likeliest.

    Each size is tried in thought: had the probe shown a quantile of what is expected there, would the gate decide?
    """
    target = evidence.stage
    options = []
    for gpus in _sizes(points, target):
        expected = scaling.predict(points, reference, _at_size(target, gpus))
        seconds = per_gpu(target) / expected.quantile(0.5)
        shown = [_expected(target, gpus, expected.quantile(p)) for p in QUANTILES]
        chance = sum(decided([*points, launch]) for launch in shown) / len(shown)
        options.append((gpu_hours(gpus, seconds), chance, gpus, seconds))
    affordable = [o for o in options if wrong is None or o[0] < wrong]
    if not affordable:
        return person(
            f"no probe below {target.gpus} GPUs costs less than the error it would prevent; somebody decides",
            gpus=target.gpus,
            wrong=wrong,
        )
    likely = [o for o in affordable if o[1] >= LIKELY]
    _, chance, gpus, seconds = min(likely) if likely else max(affordable, key=lambda o: (o[1], -o[0]))
    known = any(launch.facts.gpus == gpus for launch in points)
    what = "another launch" if known else f"a point between {reference.name} and {target.name}"
    return probe(gpus, seconds, wrong, f"{what}, which would decide with a chance of about {chance:.0%}")


def beyond_tier(evidence: Evidence, points: Sequence[Launch], throughput: float) -> Measurement:
    """Return the smallest probe in the target's network tier, or its canary where no smaller size is known to be."""
    target = evidence.stage
    wrong = wrong_start(target, throughput)
    below = target.tier_ends[target.tier - 1] if 0 < target.tier <= len(target.tier_ends) else target.gpus
    there = [gpus for gpus in _sizes(points, target) if gpus > below]
    if not there:
        cost = gpu_hours(target.gpus, per_gpu(target) / throughput)
        says = f"its own canary: write `canary:` among the gates of {target.name}, and its first steps decide"
        return Measurement("canary", target.gpus, STEPS, cost, wrong, says)
    return probe(there[0], per_gpu(target) / throughput, wrong, "a size in the network tier that no record has seen")


def _sizes(points: Sequence[Launch], target: StageFacts) -> list[int]:
    """Return sizes for a probe: those measured with the same work a GPU, and doublings of the largest of all.

    A doubling of a size that has run divides into the same groups and fills whole nodes.
    """
    again = {launch.facts.gpus for launch in points if alike(launch.facts, target) and launch.facts.gpus < target.gpus}
    return sorted(again | set(_doublings(max(launch.facts.gpus for launch in points), target.gpus)))


def _doublings(gpus: int, below: int) -> Iterator[int]:
    while (gpus := 2 * gpus) < below:
        yield gpus


def _at_size(target: StageFacts, gpus: int) -> StageFacts:
    """Return the facts of a probe for ``target``: the same work a GPU on fewer GPUs."""
    return dataclasses.replace(target, gpus=gpus, throughput_batch_tokens=max(1, round(per_gpu(target) * gpus)))


def _expected(target: StageFacts, gpus: int, throughput: float) -> Launch:
    mean = statistics.Mean(throughput, 0.0, 1.0, throughput, throughput, STEPS, 6)
    return Launch(_at_size(target, gpus), mean, "", probe=True)
