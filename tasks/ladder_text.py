"""An experiment's ladder as Markdown, for its page in Airflow; light enough for DAG files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.config.experiment import Experiment
from tasks.plan import Ladder, table


def markdown(experiment: Experiment, ladder: Ladder) -> str:
    """Return what the DAG's page says: what climbs, the stages, what each must show, what it would cost."""
    rows = table(ladder)
    parts = [
        f"**{experiment.description or experiment.name}**",
        "Each stage starts only when the one before it was promoted by its gates, or by a named person.",
        _stages(rows),
    ]
    if any(row["rehearsal"] for row in rows):
        parts.append(
            "These GPUs are **emulated**: the training, its data order and its losses are real, on this machine; the "
            "seconds of a GPU and its network are modelled for the recipe above. Trained in its place:"
        )
        parts.append(_rehearsals(rows))
    parts.append("**Gates**\n\n" + "\n".join(f"* `{row['stage']}`: {_gates(ladder, row['stage'])}" for row in rows))
    return "\n\n".join(parts)


def _stages(rows: list[dict[str, Any]]) -> str:
    head = "| stage | GPUs | cluster | start | layout | batch, sequences | steps | hours | GPU-hours, at most | USD |"
    lines = [
        f"| `{row['stage']}` | {row['gpus']} | {row['cluster']} | {row['start']} | {row['layout']} "
        f"| {_batch(row)} | {row['steps']:,} | {row['hours']:g} | {row['gpu_hours']:,.0f} | {row['cost']:,.0f} |"
        for row in rows
    ]
    return "\n".join([head, "|---" * 10 + "|", *lines])


def _rehearsals(rows: list[dict[str, Any]]) -> str:
    head = "| stage | parameters | batch, sequences | steps | replayed before them | canary among them |"
    lines = [
        f"| `{row['stage']}` | {small['parameters']:,} | {_batch(small)} | {small['steps']:,} "
        f"| {small['replay_steps']} | {small['canary_steps']} |"
        for row in rows
        if (small := row["rehearsal"])
    ]
    return "\n".join([head, "|---" * 6 + "|", *lines])


def _batch(row: Mapping[str, Any]) -> str:
    return " → ".join(f"{sequences:,}" for sequences in row["batch_sequences"])


def _gates(ladder: Ladder, stage: str) -> str:
    gates = ladder.stage(stage).gates
    said = []
    for name, thresholds in gates.items():
        values = ", ".join(f"{key} {value}" for key, value in thresholds.items())
        said.append(f"`{name}`" + (f" ({values})" if values else ""))
    return ", ".join(said) or "none"
