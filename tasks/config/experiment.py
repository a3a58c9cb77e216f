"""An experiment file: the recipe, what a rehearsal trains in its place, and the stages that it climbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, StrictStr, Tag

from tasks.config.cluster import Count, CountOrZero, Positive, Strict, Text
from tasks.config.errors import plain
from tasks.config.live import Live
from tasks.config.recipe import Layout, Recipe, Tokens, whole
from tasks.config.trainer import Trainer, trainer_said


class BatchFrom(Strict):
    """One entry of a batch that grows: ``sequences`` a step from ``from_tokens`` on, counted in this stage."""

    sequences: Count = Field(description="sequences a step")
    from_tokens: Annotated[CountOrZero, BeforeValidator(whole)] = Field(
        default=0, description="tokens of the stage before it"
    )


class LearningRateRule(Strict):
    """A learning rate that changes with the batch: an earlier stage's, or that of this stage's first batch."""

    rule: Literal["sqrt", "linear", "keep"] = Field(description="sqrt, linear or keep")
    from_: Annotated[StrictStr, Field(min_length=1)] | None = Field(
        default=None, alias="from", description="the stage whose rate is scaled"
    )
    rate: Positive | None = Field(default=None, description="that of the first batch of a list, which the rule scales")

    def factor(self, growth: float) -> float:
        """Return the factor on the learning rate for a batch that grew ``growth`` times (GATES 2.5)."""
        return float(growth ** {"sqrt": 0.5, "linear": 1.0, "keep": 0.0}[self.rule])


class FromWeights(Strict):
    """Start from the weights of a checkpoint that no stage of this experiment wrote."""

    weights: Text = Field(description="path of a checkpoint folder")


def _kind(**kinds: type | tuple[type, ...]) -> Discriminator:
    """Choose a union's member by the type of what was written; the first is taken for anything else."""

    def choose(value: Any) -> str:
        return next((f"={name}" for name, type_ in kinds.items() if isinstance(value, type_)), f"={next(iter(kinds))}")

    return Discriminator(choose)


Batch = Annotated[
    Annotated[Count, Tag("=number")] | Annotated[tuple[BatchFrom, ...], Field(min_length=1), Tag("=list")],
    _kind(number=int, list=(list, tuple)),
]
LearningRate = Annotated[
    Annotated[Positive, Tag("=number")] | Annotated[LearningRateRule, Tag("=rule")],
    _kind(number=float, rule=(Mapping, LearningRateRule)),
]
StartChoice = Annotated[
    Annotated[Literal["continue", "scratch"], Tag("=word")] | Annotated[FromWeights, Tag("=weights")],
    _kind(word=str, weights=(Mapping, FromWeights)),
]


def _gate_value(value: Any) -> Any:
    """Take ``finite_loss:`` with nothing behind it for a gate with its default thresholds."""
    if value is None:
        return {}
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        return value
    if value == "dropped" or isinstance(value, Mapping):
        return value
    raise ValueError(
        f"must be thresholds, a list of such, nothing (its defaults) or the word dropped, not {plain(value)}"
    )


Thresholds = dict[str, Any]
GateChoice = Annotated[Thresholds | list[Thresholds] | Literal["dropped"], BeforeValidator(_gate_value)]
"""A gate's thresholds; a list of them asks the gate several times, of several reference stages say."""


class Stage(Strict):
    """One scale of an experiment; ``rehearsal`` says what differs where its GPUs are emulated."""

    gpus: Count = Field(description="how many GPUs")
    cluster: Text | None = None
    hours: Positive = Field(description="how long the job may run")
    steps: Count | None = None
    tokens: Tokens | None = None
    batch_sequences: Batch = Field(description="sequences a step, or a list of {sequences, from_tokens}")
    learning_rate: LearningRate = Field(description="a number, or {rule: sqrt, from: gpus_8}")
    start: StartChoice | None = None
    layout: Layout | None = None
    gates: dict[str, GateChoice] = Field(description="what must hold, for example finite_loss:", min_length=1)
    probes: CountOrZero = Field(default=2, description="short extra jobs that undecided gates may ask for")
    probe_gpus: tuple[Count, ...] = Field(
        default=(), description="sizes measured inside the stage's allocation before it trains"
    )
    live: Live = Live()
    rehearsal: dict[str, Any] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """``gpus_64``: folder, task group and report title."""
        return f"gpus_{self.gpus}"

    @property
    def batches(self) -> tuple[BatchFrom, ...]:
        """The batch as a list, also where it is one number."""
        batch = self.batch_sequences
        return (BatchFrom(sequences=batch),) if isinstance(batch, int) else batch

    @property
    def asked(self) -> dict[str, Thresholds]:
        """Each gate that is judged and its thresholds; asked again, a gate's key ends in what tells it apart."""
        found: dict[str, Thresholds] = {}
        for name, chosen in self.gates.items():
            for index, thresholds in enumerate(chosen if isinstance(chosen, list) else [chosen]):
                if not isinstance(thresholds, str):
                    key = f"{name}.{thresholds.get('reference', thresholds.get('metric', index))}" if index else name
                    found[f"{key}.{index}" if key in found else key] = thresholds
        return found

    @property
    def dropped(self) -> tuple[str, ...]:
        """Gates that are left out by name."""
        return tuple(name for name, chosen in self.gates.items() if chosen == "dropped")

    def starts(self, index: int) -> Literal["continue", "scratch"] | FromWeights:
        """Return how the stage begins; unsaid, the first is from scratch and the others continue."""
        return self.start or ("continue" if index else "scratch")


class Declares(Strict):
    """Changes against earlier runs, whose losses are then no measure of this one's; each says why."""

    data: Text | None = Field(default=None, description="why the data mix differs")
    gpu_type: Text | None = Field(default=None, description="why the GPUs are of another type")


class Experiment(Strict):
    """A recipe and the stages that prove it at growing scale."""

    name: Text = Field(default="", json_schema_extra={"filled": True})
    description: StrictStr = ""
    owner: StrictStr = ""
    cluster: Text = Field(description="the name of a file in configs/clusters")
    trainer: Annotated[Trainer, BeforeValidator(trainer_said)] = Trainer()
    seed: CountOrZero = 0
    hand_over_steps: Count = Field(default=60, description="steps before its end at which a stage hands over")
    canary_steps: Count = Field(
        default=60, description="steps after the replay that are judged before the rest is spent"
    )
    budget_gpu_hours: Positive | None = None
    declares: Declares = Field(default=Declares(), description="changes against the stored baseline, and why")
    decision_hours: Positive = Field(default=72.0, description="how long an undecided verdict waits for a person")
    live: Live = Field(default=Live(), description="what looks at running stages do about what they see")
    train: Recipe = Field(description="the recipe: model, sequence_length, layout, ...")
    rehearsal: dict[str, Any] = Field(default_factory=dict)
    stages: tuple[Stage, ...] = Field(description="a list of stages, ascending in gpus", min_length=1)

    def stage_named(self, name: str) -> Stage | None:
        """Return the stage of that name, if there is one."""
        return next((stage for stage in self.stages if stage.name == name), None)
