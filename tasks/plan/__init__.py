"""The ladder as numbers: which steps each stage takes, with which batch and learning rate, and what it costs.

Steps are numbered over the whole ladder from 1. Stage 1 takes 1..S and hands over after step S - K. The next begins
there: it replays S-K+1..S with the batch, learning rate and schedule of the stage before, then takes its canary and
the rest from S+1 on. A trainer that cannot replay begins with the canary at S-K+1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tasks import config
from tasks.config import files
from tasks.config.as_trained import AsTrained, as_trained, chain_steps
from tasks.config.cluster import Cluster
from tasks.config.errors import invalid, unknown
from tasks.config.experiment import Experiment, FromWeights
from tasks.config.rules import problems as rule_problems
from tasks.config.rules import stage_clusters
from tasks.plan import spans
from tasks.plan.frozen import difference, freeze, thaw
from tasks.plan.ladder import Ladder, StagePlan, gate_name, refused
from tasks.plan.rates import rates
from tasks.plan.table import table
from tasks.plan.train_config import train_config
from training.config import Start

__all__ = ["Ladder", "StagePlan", "difference", "freeze", "gate_name", "resolve", "table", "thaw", "train_config"]


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
            raise refused(experiment.name, key, unknown("stage", name, names))
    begin = names.index(first) if first else 0
    end = names.index(last) if last else len(names) - 1
    if begin > end:
        raise refused(experiment.name, "first", f"{first} comes after the last stage, {last}; swap them")
    if begin and experiment.stages[begin].starts(begin) == "continue":
        text = (
            f"{first} continues {names[begin - 1]}, and a run cannot take over another run's promotion; start with "
            f"{names[0]}, or give {first} start: scratch or {{weights: PATH}}"
        )
        raise refused(experiment.name, "first", text)
    return begin, end


def _references(experiment: Experiment, chosen: Sequence[StagePlan]) -> None:
    """Refuse a choice of stages that leaves out one with which a gate compares."""
    there = {plan.name for plan in chosen}
    for plan in chosen:
        for key, thresholds in plan.gates.items():
            reference = thresholds.get("reference")
            if reference is not None and reference not in there:
                text = f"{gate_name(key)} of {plan.name} compares with {reference}, which would not be climbed"
                raise refused(experiment.name, "first", f"{text}; start with {reference}")


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
    return StagePlan(
        experiment=experiment.name,
        name=stage.name,
        index=index,
        gpus=stage.gpus,
        cluster=cluster,
        spans=(*replay, *own),
        start=_start(stage.starts(index), previous),
        previous=previous.name if previous else None,
        next=None,
        hand_over_step=_hand_over(experiment, index, own[-1].last_step, trained),
        tokens_first=spans.tokens_after(previous, own[0].first_step - 1),
        gates=trained.stage.asked,
        live=trained.stage.live,
        hours=trained.stage.hours,
        decision_hours=experiment.decision_hours,
        trained=trained,
        real=real,
        rates=peaks,
        real_rates=rates(real, {plan.name: (plan.real_rates[-1], plan.throughput_batch_tokens) for plan in before}),
        first_batch_sequences=(previous.first_batch_sequences if previous else trained.segments[0][0]),
        real_first_batch_sequences=(previous.real_first_batch_sequences if previous else real.segments[0][0]),
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
