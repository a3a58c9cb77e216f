"""The ladder as numbers: which steps each stage takes, with which batch and learning rate, and what it costs.

Steps are numbered over the whole ladder from 1. Stage 1 takes 1..S and hands over after step S - K. The next begins
there: it replays S-K+1..S with the batch, learning rate and schedule of the stage before, then takes its canary and
the rest from S+1 on. A trainer that cannot replay begins with the canary at S-K+1.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tasks import config
from tasks.config import files
from tasks.config.as_trained import AsTrained, as_trained, chain_steps
from tasks.config.cluster import Cluster
from tasks.config.errors import Problem, invalid, unknown
from tasks.config.experiment import Experiment, FromWeights
from tasks.config.live import Live
from tasks.config.recipe import Recipe
from tasks.config.rules import problems as rule_problems
from tasks.config.rules import stage_clusters
from tasks.config.trainer import Trainer
from tasks.plan import spans
from tasks.plan.facts import facts
from tasks.plan.frozen import difference, freeze, thaw
from tasks.plan.rates import rates
from tasks.plan.table import table
from tasks.plan.train_config import train_config
from training.config import Span, Start

if TYPE_CHECKING:
    from tasks.gates.core import StageFacts

__all__ = ["Ladder", "StagePlan", "difference", "freeze", "gate_name", "resolve", "table", "thaw", "train_config"]


@dataclass(frozen=True)
class StagePlan:
    """All that is decided of a stage before it starts."""

    experiment: str
    name: str
    index: int
    gpus: int
    nodes: int
    cluster: Cluster
    emulated: bool
    recipe: Recipe  # what is trained
    modelled: Recipe | None  # what step times are modelled for, where GPUs are emulated
    spans: tuple[Span, ...]
    start: Start
    previous: str | None  # the stage whose hand-over this one starts from
    next: str | None
    hand_over_step: int | None  # None where no stage goes on from here
    first_step: int  # of the stage's own steps: what it replays comes before
    last_step: int
    tokens_first: int  # tokens seen before first_step
    tokens_last: int  # tokens seen after last_step
    batch_tokens: int  # of the last batch really trained
    throughput_batch_tokens: int  # of the recipe whose speed is recorded
    gates: dict[str, dict[str, Any]]  # thresholds by gate; a key may name one again: gate_name
    dropped: tuple[str, ...]  # gates that the experiment drops by name
    live: Live  # rules of the looks while it runs
    hours: float  # limit of the job
    decision_hours: float  # how long an undecided verdict waits for a person
    tier: int
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
        raise _refused(self.experiment, "stages", unknown("stage", name, [stage.name for stage in self.stages]))

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


def _plain(stage: StagePlan) -> dict[str, Any]:
    """Return a stage as plain JSON, in one order whatever the process."""
    names = {field.name for field in dataclasses.fields(stage)} - {"real", "trained"}  # all else follows from these
    values = {name: getattr(stage, name) for name in names}
    values |= {key: config.dump(values[key]) for key in ("cluster", "recipe", "trainer")}
    values["modelled"] = config.dump(stage.modelled) if stage.modelled else None
    values["live"] = stage.live.settings
    values["spans"] = [dataclasses.asdict(span) for span in stage.spans]
    values["start"] = dataclasses.asdict(stage.start)
    return values


def gate_name(key: str) -> str:
    """Return the gate of a key of :attr:`StagePlan.gates`: ``scaling_efficiency`` of ``scaling_efficiency.gpus_8``."""
    return key.partition(".")[0]


def resolve(
    experiment: Experiment,
    *,
    cluster: str | None = None,
    first: str | None = None,
    last: str | None = None,
    seed: int | None = None,
    launch_seed: int | None = None,
    clusters: Mapping[str, Cluster] | None = None,
    amended_rates: Sequence[tuple[str, int, float]] = (),
) -> Ladder:
    """Return the ladder of an experiment on its clusters, or on ``cluster`` where stages name none of their own.

    ``clusters`` stands for the files (a frozen recipe has them). ``first`` and ``last`` choose stages; the first must
    start by itself, since no other run's promotion is taken over. ``amended_rates`` are peak learning rates of stages,
    each after a step. Raises ConfigInvalid with all that does not fit.
    """
    there = clusters if clusters is not None else config.clusters_of(experiment, cluster)
    where = stage_clusters(experiment, there, cluster)
    found = rule_problems(experiment, where)
    if found:
        raise invalid(files.config_root() / "experiments" / f"{experiment.name}.yaml", "experiment", found)
    begin, end = _selection(experiment, first, last)
    plans: list[StagePlan] = []
    for index in range(end + 1):  # from the first, since a learning rate may follow from a stage not chosen
        plans.append(_at_rates(_plan(experiment, index, where, plans, seed), amended_rates))
    chosen = plans[begin:]
    _references(experiment, chosen)
    chosen = [replace(plan, next=after.name) for plan, after in pairwise(chosen)] + [
        replace(chosen[-1], hand_over_step=None)
    ]
    return Ladder(experiment.name, tuple(replace(plan, launch_seed=launch_seed) for plan in chosen))


def _at_rates(plan: StagePlan, amended: Sequence[tuple[str, int, float]]) -> StagePlan:
    for stage, after, rate in amended:
        if stage == plan.name:
            plan = replace(plan, spans=spans.at_rate(plan.spans, after, rate))
    return plan


def _selection(experiment: Experiment, first: str | None, last: str | None) -> tuple[int, int]:
    names = [stage.name for stage in experiment.stages]
    for key, name in (("first", first), ("last", last)):
        if name is not None and name not in names:
            raise _refused(experiment.name, key, unknown("stage", name, names))
    begin = names.index(first) if first else 0
    end = names.index(last) if last else len(names) - 1
    if begin > end:
        raise _refused(experiment.name, "first", f"{first} comes after the last stage, {last}; swap them")
    if begin and experiment.stages[begin].starts(begin) == "continue":
        text = (
            f"{first} continues {names[begin - 1]}, and a run cannot take over another run's promotion; start with "
            f"{names[0]}, or give {first} start: scratch or {{weights: PATH}}"
        )
        raise _refused(experiment.name, "first", text)
    return begin, end


def _references(experiment: Experiment, chosen: Sequence[StagePlan]) -> None:
    """Refuse a choice of stages that leaves out one with which a gate compares."""
    there = {plan.name for plan in chosen}
    for plan in chosen:
        for key, thresholds in plan.gates.items():
            reference = thresholds.get("reference")
            if reference is not None and reference not in there:
                text = f"{gate_name(key)} of {plan.name} compares with {reference}, which would not be climbed"
                raise _refused(experiment.name, "first", f"{text}; start with {reference}")


def _refused(experiment: str, where: str, text: str) -> config.ConfigInvalid:
    return config.ConfigInvalid(f"experiment {experiment} cannot be climbed so:\n  {Problem(where, text)}")


def _plan(
    experiment: Experiment, index: int, where: Sequence[Cluster], before: Sequence[StagePlan], seed: int | None
) -> StagePlan:
    """Resolve one stage, given all those before it."""
    cluster, stage = where[index], experiment.stages[index]
    trained, real = as_trained(experiment, index, cluster.emulated), as_trained(experiment, index, False)
    previous = before[-1] if before and stage.starts(index) == "continue" else None
    can_replay = experiment.trainer.can("replay")
    replay = spans.replay(previous.own_spans, trained.hand_over_steps) if previous and can_replay else ()
    peaks = rates(trained, {plan.name: (plan.learning_rate, plan.batch_tokens) for plan in before})
    own = spans.own(
        trained,
        done=spans.done_before(previous, can_replay),
        canary_steps=trained.canary_steps if index else 0,
        rates=peaks,
        total_steps=chain_steps(experiment, index, cluster.emulated),
    )
    sequence = trained.recipe.sequence_length
    tokens_first = spans.tokens_after(previous, own[0].first_step - 1)
    return StagePlan(
        experiment=experiment.name,
        name=stage.name,
        index=index,
        gpus=stage.gpus,
        nodes=-(-stage.gpus // cluster.gpus_per_node),
        cluster=cluster,
        emulated=cluster.emulated,
        recipe=trained.recipe,
        modelled=real.recipe if cluster.emulated else None,
        spans=(*replay, *own),
        start=_start(stage.starts(index), previous),
        previous=previous.name if previous else None,
        next=None,
        hand_over_step=_hand_over(experiment, index, own[-1].last_step, trained),
        first_step=own[0].first_step,
        last_step=own[-1].last_step,
        tokens_first=tokens_first,
        tokens_last=tokens_first + sum(span.steps * span.batch_sequences for span in own) * sequence,
        batch_tokens=own[-1].batch_sequences * sequence,
        throughput_batch_tokens=real.segments[-1][0] * real.recipe.sequence_length,
        gates=trained.stage.asked,
        dropped=trained.stage.dropped,
        live=trained.stage.live,
        hours=trained.stage.hours,
        decision_hours=experiment.decision_hours,
        trained=trained,
        real=real,
        rates=peaks,
        real_rates=rates(real, {plan.name: (plan.real_rates[-1], plan.throughput_batch_tokens) for plan in before}),
        first_batch_sequences=(previous.first_batch_sequences if previous else trained.segments[0][0]),
        real_first_batch_sequences=(previous.real_first_batch_sequences if previous else real.segments[0][0]),
        tier=cluster.tier(stage.gpus),
        seed=experiment.seed if seed is None else seed,
        trainer=experiment.trainer,
    )


def _hand_over(experiment: Experiment, index: int, last_step: int, trained: AsTrained) -> int | None:
    after = index + 1
    goes_on = after < len(experiment.stages) and experiment.stages[after].starts(after) == "continue"
    return last_step - trained.hand_over_steps if goes_on else None


def _start(chosen: str | FromWeights, previous: StagePlan | None) -> Start:
    """Return where weights come from; the hand-over's path is known once the stage before is promoted."""
    if isinstance(chosen, FromWeights):
        return Start("weights", chosen.weights)
    return Start("continue", None, previous.hand_over_step or 0) if previous else Start("scratch")
