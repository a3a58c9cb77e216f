"""The resolved ladder as rows, for `scaleup validate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tasks.config.as_trained import AsTrained
from tasks.config.recipe import Layout
from tasks.plan.rates import optimizer

if TYPE_CHECKING:
    from tasks.plan import Ladder, StagePlan


def table(ladder: Ladder) -> list[dict[str, Any]]:
    """Return one row a stage: the real recipe's numbers, and under ``rehearsal`` what is trained in its place.

    Keys: stage, gpus, nodes, cluster, parameters, layout, batch_sequences (a list, as it grows), batch_tokens (of the
    last), steps, tokens, learning_rate and second_beta (lists, one number a batch), start, replay_steps, canary_steps,
    hours, gpu_hours, cost, gates, dropped, rehearsal (None, or a mapping of the same numbers with processes).
    """
    return [_row(plan) for plan in ladder.stages]


def _row(plan: StagePlan) -> dict[str, Any]:
    row: dict[str, Any] = {"stage": plan.name, "gpus": plan.gpus, "nodes": plan.nodes, "cluster": plan.cluster.name}
    row |= _numbers(plan, plan.real, plan.real_rates, plan.real_first_batch_sequences)
    row |= {
        "start": f"continue {plan.previous}" if plan.previous else plan.start.checkpoint or plan.start.kind,
        "gpu_hours": plan.gpu_hours,
        "cost": plan.cost,
        "gates": list(plan.gates),
        "dropped": list(plan.dropped),
        "rehearsal": None,
    }
    if plan.emulated:
        numbers = _numbers(plan, plan.trained, plan.rates, plan.first_batch_sequences)
        row["rehearsal"] = numbers | {"processes": plan.recipe.processes}
    return row


def _numbers(plan: StagePlan, trained: AsTrained, rates: Sequence[float], first_batch: int) -> dict[str, Any]:
    """Return the numbers of a stage as it is really trained, or as it is rehearsed."""
    sequence = trained.recipe.sequence_length
    moments = optimizer(trained, first_batch)
    return {
        "parameters": trained.recipe.model.shape.parameters,
        "layout": _layout(trained.recipe.layout, plan.gpus),
        "batch_sequences": [sequences for sequences, _ in trained.segments],
        "batch_tokens": trained.segments[-1][0] * sequence,
        "steps": trained.steps,
        "tokens": sum(sequences * steps for sequences, steps in trained.segments) * sequence,
        "learning_rate": list(rates),
        "second_beta": [moments.second_beta(sequences) for sequences, _ in trained.segments],
        "replay_steps": trained.hand_over_steps if plan.steps_in("replay") else 0,
        "canary_steps": trained.canary_steps if plan.steps_in("canary") else 0,
        "hours": trained.stage.hours,
    }


def _layout(layout: Layout, gpus: int) -> str:
    """Return a layout in words, factors of one left out, with the copies that follow from the GPUs."""
    copies = gpus // layout.group // layout.shard
    parts = {"tensor": layout.tensor, "pipeline": layout.pipeline, "shard": layout.shard, "replicate": copies}
    named = [f"{name} {count}" for name, count in parts.items() if count > 1]
    return " x ".join(named) or "one GPU"
