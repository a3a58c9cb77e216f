"""Launches: every independent measurement of speed, stages and probes alike, and several of one size together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tasks import statistics
from tasks.gates import frames
from tasks.gates.core import EarlierStage, Evidence, Noise, Probe, StageFacts, Unusable
from tasks.gates.frames import Recorded

ALIKE = math.log(1.1)  # tokens a GPU and step within 10% of one another count as the same
LEAST_REPEATS = 3  # fewer give a standard deviation with which nothing could ever be decided


@dataclass(frozen=True)
class Launch:
    """One launch: its facts, and its tokens/s/GPU with an interval for the noise within it alone."""

    facts: StageFacts
    speed: statistics.Mean
    window: str
    probe: bool = False
    seconds: statistics.Array | None = None  # of its steps

    @property
    def throughput(self) -> float:
        """Tokens a GPU and second."""
        return self.speed.value

    @property
    def step_seconds(self) -> float:
        """Seconds of a mean step."""
        return per_gpu(self.facts) / self.throughput


@dataclass(frozen=True)
class LaunchNoise:
    """The relative sd from launch to launch that a gate goes by, its degrees of freedom, and where it is from."""

    sd: float
    df: float
    says: str


def launch_noise(noise: Noise, given: float | None) -> LaunchNoise:
    """Return the launch sd that the policy gives, else the measured one, else the prior, and say which it is."""
    if given is not None:
        return LaunchNoise(given, math.inf, f"given in the policy, {given:g}")
    if noise.launch_sd is not None and noise.repeats >= LEAST_REPEATS:
        source = f" ({noise.source})" if noise.source else ""
        return LaunchNoise(
            noise.launch_sd, noise.repeats - 1, f"measured, {noise.repeats} repeats{source}, {noise.launch_sd:.3g}"
        )
    return LaunchNoise(statistics.LAUNCH_SD, math.inf, f"prior, {statistics.LAUNCH_SD:g}")


def per_gpu(facts: StageFacts) -> float:
    """Tokens a GPU and step of the recipe whose speed is recorded."""
    return facts.throughput_batch_tokens / facts.gpus


def alike(a: StageFacts, b: StageFacts) -> bool:
    """Whether a GPU has the same work a step in both."""
    return abs(math.log(per_gpu(a) / per_gpu(b))) <= ALIKE


def of_stage(of: Recorded, facts: StageFacts, phases: tuple[str, ...] = ("train",)) -> Launch:
    """Return a stage's own launch; raise Unusable where its records are not sound."""
    mean, seconds, window = frames.measured(of, facts, phases=phases)
    return Launch(facts, mean, window, seconds=seconds)


def of_whole_stage(evidence: Evidence) -> Launch:
    """Return the launch of the stage in question; raise Unusable where its records have holes or end too early."""
    frames.refuse_cut_short(evidence, frames.steps(evidence, evidence.stage.name), "train")
    return of_stage(evidence, evidence.stage)


def of_probe(probe: Probe) -> Launch:
    """Return a probe's launch; raise Unusable where its records are not sound."""
    mean, seconds, window = frames.measured(
        EarlierStage(probe.facts, probe.steps, probe.steps.iloc[:0]), probe.facts, phases=("probe",)
    )
    return Launch(probe.facts, mean, window, probe=True, seconds=seconds)


def points(evidence: Evidence) -> list[Launch]:
    """Return every launch that a forecast may rest on: earlier stages with their probes, then this stage's probes."""
    found = list(_before(evidence))
    if not any(not launch.probe for launch in found):
        raise Unusable(f"no stage before {evidence.stage.name} has records to forecast from")
    return found


def _before(evidence: Evidence) -> Iterator[Launch]:
    for stage in evidence.earlier.values():
        yield of_stage(stage, stage.facts)
        yield from map(of_probe, stage.probes)
    yield from map(of_probe, evidence.probes)


def newest(of: Sequence[Launch]) -> Launch:
    """Return the launch of the last stage among them, probes left aside."""
    return [launch for launch in of if not launch.probe][-1]


def same_size(own: Launch, evidence: Evidence) -> list[Launch]:
    """Return a stage's own launch and all probes of its size with the same work a GPU, whoever bought them."""
    probes = [probe for stage in evidence.earlier.values() for probe in stage.probes] + list(evidence.probes)
    return [own, *(of_probe(p) for p in probes if p.facts.gpus == own.facts.gpus and alike(p.facts, own.facts))]


def together(of: Sequence[Launch], noise: LaunchNoise, confidence: float) -> statistics.Mean:
    """Return what launches of one size say together, tokens/s/GPU."""
    return statistics.across_launches(
        [launch.speed for launch in of], launch_sd=noise.sd, launch_df=noise.df, confidence=confidence
    )


def window(of: Sequence[Launch]) -> str:
    """Say which records were used; the stage's own window alone where there is no probe."""
    named = [f"{launch.facts.name} {launch.window}" for launch in of if launch.probe]
    return "; ".join([*(launch.window for launch in of if not launch.probe), *named])
