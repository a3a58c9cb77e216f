"""A stage and a ladder of stages, resolved: all that is decided of them before anything starts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks import config
from tasks.config.as_trained import AsTrained
from tasks.config.cluster import Cluster
from tasks.config.errors import Problem, unknown
from tasks.config.live import Live
from tasks.config.recipe import Recipe
from tasks.config.trainer import Trainer
from tasks.plan.facts import facts
from training.config import Span, Start

if TYPE_CHECKING:
    from tasks.gates.core import StageFacts


@dataclass(frozen=True)
class StagePlan:
    """All that is decided of a stage before it starts."""

    experiment: str
    name: str
    index: int
    gpus: int
    cluster: Cluster
    spans: tuple[Span, ...]
    start: Start
    previous: str | None  # the stage whose hand-over this one starts from
    next: str | None
    hand_over_step: int | None  # None where no stage goes on from here
    tokens_first: int  # tokens seen before first_step
    gates: dict[str, dict[str, Any]]  # thresholds by gate; a key may name one again: gate_name
    live: Live  # rules of the looks while it runs
    hours: float  # limit of the job
    decision_hours: float  # how long an undecided verdict waits for a person
    seed: int
    trainer: Trainer
    trained: AsTrained
    real: AsTrained  # the stage as real GPUs would train it: the same, unless it is rehearsed
    rates: tuple[float, ...]  # peak learning rate of each batch in turn
    real_rates: tuple[float, ...]
    first_batch_sequences: int  # of the first step of the stages that continue one another
    real_first_batch_sequences: int
    launch_seed: int | None = None  # of modelled noise alone, where repeats share the seed of all else

    @property
    def nodes(self) -> int:
        """Whole nodes that hold its GPUs."""
        return -(-self.gpus // self.cluster.gpus_per_node)

    @property
    def emulated(self) -> bool:
        """Whether its GPUs are."""
        return self.cluster.emulated

    @property
    def tier(self) -> int:
        """Network tiers that it spans."""
        return self.cluster.tier(self.gpus)

    @property
    def recipe(self) -> Recipe:
        """What is trained."""
        return self.trained.recipe

    @property
    def modelled(self) -> Recipe | None:
        """What step times are modelled for, where GPUs are emulated."""
        return self.real.recipe if self.emulated else None

    @property
    def first_step(self) -> int:
        """First of the stage's own steps: what it replays comes before."""
        return self.own_spans[0].first_step

    @property
    def last_step(self) -> int:
        """Its last step."""
        return self.own_spans[-1].last_step

    @property
    def tokens_last(self) -> int:
        """Tokens seen after its last step."""
        sequences = sum(span.steps * span.batch_sequences for span in self.own_spans)
        return self.tokens_first + sequences * self.recipe.sequence_length

    @property
    def batch_tokens(self) -> int:
        """Tokens of the last batch really trained."""
        return self.own_spans[-1].batch_sequences * self.recipe.sequence_length

    @property
    def throughput_batch_tokens(self) -> int:
        """Tokens a step of the recipe whose speed is recorded."""
        return self.real.segments[-1][0] * self.real.recipe.sequence_length

    @property
    def dropped(self) -> tuple[str, ...]:
        """Gates that the experiment drops by name."""
        return self.trained.stage.dropped

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the real stage at most; modelled where the GPUs are emulated."""
        return self.gpus * self.real.stage.hours

    @property
    def cost(self) -> float:
        """US dollars at the cluster's price."""
        return self.gpu_hours * self.cluster.price_per_gpu_hour

    @property
    def own_spans(self) -> tuple[Span, ...]:
        """The steps that no earlier stage has taken: canary and train."""
        return tuple(span for span in self.spans if span.phase != "replay")

    @property
    def learning_rate(self) -> float:
        """Peak learning rate of the last batch."""
        return self.spans[-1].learning_rate

    def steps_in(self, phase: str) -> int:
        """Steps of one phase."""
        return sum(span.steps for span in self.spans if span.phase == phase)

    def facts(self, fingerprint: str = "") -> StageFacts:
        """Return what gates may know of the stage; ``fingerprint`` is the data's, once a trainer has said it."""
        return facts(self, fingerprint)


@dataclass(frozen=True)
class Ladder:
    """The stages of a run in order."""

    experiment: str
    stages: tuple[StagePlan, ...]

    def stage(self, name: str) -> StagePlan:
        """Return the stage of that name; raise ConfigInvalid naming those there are."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise refused(self.experiment, "stages", unknown("stage", name, [stage.name for stage in self.stages]))

    @property
    def digest(self) -> str:
        """SHA-256 of everything that decides what is trained and how it is judged."""
        plain = [_plain(stage) for stage in self.stages]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of all stages at most."""
        return sum(stage.gpu_hours for stage in self.stages)

    @property
    def cost(self) -> float:
        """US dollars of all stages at most."""
        return sum(stage.cost for stage in self.stages)


_FOLLOW = {  # properties that a digest holds as well
    "batch_tokens", "dropped", "emulated", "first_step", "last_step", "modelled", "nodes", "recipe",
    "throughput_batch_tokens", "tier", "tokens_last",
}  # fmt: skip


def _plain(stage: StagePlan) -> dict[str, Any]:
    """Return a stage as plain JSON, in one order whatever the process."""
    fields = {field.name for field in dataclasses.fields(stage)} - {"real", "trained"}  # all else follows from these
    values = {name: getattr(stage, name) for name in fields | _FOLLOW}
    values |= {key: config.dump(values[key]) for key in ("cluster", "recipe", "trainer")}
    values["modelled"] = config.dump(stage.modelled) if stage.modelled else None
    values["live"] = stage.live.settings
    values["spans"] = [dataclasses.asdict(span) for span in stage.spans]
    values["start"] = dataclasses.asdict(stage.start)
    return values


def gate_name(key: str) -> str:
    """Return the gate of a key of :attr:`StagePlan.gates`: ``scaling_efficiency`` of ``scaling_efficiency.gpus_8``."""
    return key.partition(".")[0]


def refused(experiment: str, where: str, text: str) -> config.ConfigInvalid:
    """Return the error for stages that cannot be climbed as asked; ``where`` is the key or option at fault."""
    return config.ConfigInvalid(f"experiment {experiment} cannot be climbed so:\n  {Problem(where, text)}")
