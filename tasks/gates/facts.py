"""What a gate may look at: the facts of a stage, its records, those of the stages before, what was forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from training.config.data import SYNTHETIC

if TYPE_CHECKING:  # DAG files read the gates' names and thresholds at every parse: no frames for that
    import pandas as pd

When = Literal["entry", "early", "end"]
"""entry: before the stage starts; early: while it runs, once canary records are there; end: after its last step."""


@dataclass(frozen=True)
class StageFacts:
    """What a gate may know of a stage beside its metrics."""

    name: str
    gpus: int
    nodes: int
    emulated: bool
    throughput_batch_tokens: int  # tokens a step of the recipe whose speed is recorded: tells weak from strong scaling
    batch_tokens: int  # tokens a step that is really trained (the last batch of the stage)
    tier: int  # network tiers that the stage spans: 0 inside one node, 1 between nodes, 2 beyond a leaf, ...
    seed: int
    fingerprint: str = ""  # of the data
    first_step: int = 0  # steps before it belong to earlier stages (replay repeats them)
    last_step: int = 0
    memory_gib_per_gpu: float | None = None  # what the cluster says a GPU has
    tier_ends: tuple[int, ...] = ()  # the most GPUs of each tier; of the last, of the cluster
    asks_canary: bool = False  # its `canary` gate is asked and enforced
    steps_at_stake: int = 0  # of the real stage until its canary has judged; all of them where none is asked

    @property
    def synthetic(self) -> bool:
        """Whether it trains on random tokens, of which nothing can be learnt."""
        return self.fingerprint.startswith(SYNTHETIC)


@dataclass(frozen=True)
class Noise:
    """What repeats at one scale have shown (``scaleup calibrate``); None where a gate must go by its prior."""

    launch_sd: float | None = None  # relative sd of throughput from launch to launch
    step_sd: float | None = None  # relative sd of a step's seconds within a launch
    loss_sd: float | None = None  # nats; sd of the held-out loss from run to run at equal tokens
    repeats: int = 0
    source: str = ""  # file it was read from


@dataclass(frozen=True)
class Probe:
    """A short extra job that measured speed: its facts (``gpus`` is its own size) and its step records."""

    facts: StageFacts
    steps: pd.DataFrame


@dataclass(frozen=True)
class Evidence:
    """Everything a gate may look at. Frames are as :func:`tasks.records.Metrics` gives them."""

    stage: StageFacts
    steps: pd.DataFrame  # this stage's step records, last attempt of each; empty before it starts
    held_out: pd.DataFrame  # this stage's held-out rows
    earlier: Mapping[str, EarlierStage] = field(default_factory=dict)  # in ladder order, all stages before this one
    forecast: Mapping[str, Any] | None = None  # forecast.json of this stage
    baseline: Mapping[str, Any] | None = None  # stored reference curve for the same data fingerprint
    previous: str | None = None  # stage whose hand-over this one started from
    moment: When = "end"  # when this is judged: an early look may not ask for the last step
    probes: tuple[Probe, ...] = ()  # taken for this stage, of whatever size
    noise: Noise = Noise()
    declared: Mapping[str, str] = field(default_factory=dict)  # declared changes against the baseline: what, and why
    following: StageFacts | None = None  # the stage that a promotion opens, if there is one
    checkpoints: pd.DataFrame | None = None  # this stage's checkpoint rows, where they are known


@dataclass(frozen=True)
class EarlierStage:
    """A stage before the one in question, as evidence."""

    facts: StageFacts
    steps: pd.DataFrame
    held_out: pd.DataFrame
    forecast: Mapping[str, Any] | None = None  # what had been registered for it
    probes: tuple[Probe, ...] = ()  # taken after it or inside its allocation
