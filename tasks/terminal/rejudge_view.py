"""Runs judged anew, for a person and as JSON: what would have changed, and how many promotions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tasks.rejudge import GateAnew, StageAnew
from tasks.stage_dir import RunDir

Judged = Sequence[tuple[RunDir, Sequence[StageAnew]]]
_SAYS = {
    "UNKNOWN": "it would have gone on, and what it would then have shown nobody knows",
    "NOT REACHED": "the stage before it would not have been promoted",
}


def show(judged: Judged) -> RenderableType:
    """Return what answers otherwise, run by run; what could not be judged anew; each stage's end; one line at last."""
    parts: list[RenderableType] = []
    for run, stages in judged:
        name = f"{run.experiment}/{run.run_id}"
        rows = [(stage, gate) for stage in stages for gate in stage.gates if gate.changed]
        none = f"{name}: no gate and no live rule answers otherwise"
        parts.append(_table(name, rows) if rows else Text(none, style="bold"))
        parts += [Text(f"  {note}", style="dim") for stage in stages for note in stage.notes]
        parts += [Text(f"  {_end(stage)}", style=_style(stage)) for stage in stages]
    return Group(*parts, Text(sentence(judged), style="bold"))


def sentence(judged: Judged) -> str:
    """Say how many promotions would have changed, and of how many nobody knows."""
    stages = [stage for _, found in judged for stage in found]
    changed = [stage for stage in stages if stage.promotion_changed]
    unknown = sum(stage.promotion_changed is None for stage in stages)
    drifted = sum(stage.drifted for stage in stages)
    said = f"{len(changed)} of {len(stages)} promotions would have changed"
    said += f"; of {unknown} more nobody knows, since the stage never ran to its end" if unknown else ""
    return said + (f"; {drifted} change today whatever the policy (baselines, noise, versions)" if drifted else "")


def plain(policy: str, judged: Judged) -> dict[str, Any]:
    """Return the same as plain values, with the gates that answer as before."""
    runs = [
        {"run": f"{run.experiment}/{run.run_id}", "stages": [_plain(stage) for stage in stages]}
        for run, stages in judged
    ]
    stages = [stage for _, found in judged for stage in found]
    counted = {
        "promotions": len(stages),
        "promotions_changed": sum(bool(stage.promotion_changed) for stage in stages),
        "promotions_unknown": sum(stage.promotion_changed is None for stage in stages),
        "promotions_drifted": sum(stage.drifted for stage in stages),
    }
    return {"gates": policy, "runs": runs, **counted}


def _plain(stage: StageAnew) -> dict[str, Any]:
    gates = [{**asdict(gate), "changed": gate.changed, "by_policy": gate.by_policy} for gate in stage.gates]
    return {**asdict(stage), "gates": gates, "promotion_changed": stage.promotion_changed, "drifted": stage.drifted}


def _table(title: str, rows: Iterable[tuple[StageAnew, GateAnew]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("stage", "judged", "gate or live rule", "was", "would be", "why"):
        table.add_column(column, overflow="fold")
    for stage, gate in rows:
        why = gate.reason if gate.by_policy else f"not by the policy (today's own: {gate.today}): {gate.reason}"
        table.add_row(stage.name, gate.moment, gate.gate, gate.recorded, gate.anew, Text(why))
    return table


def _end(stage: StageAnew) -> str:
    if stage.recorded == stage.anew:
        return f"{stage.name}: {stage.recorded} as before"
    more = f" ({_SAYS[stage.anew]})" if stage.anew in _SAYS else ""
    more += " (so today by its own gates as well)" if stage.today == stage.anew else ""
    return f"{stage.name}: {stage.recorded} -> {stage.anew}{more}"


def _style(stage: StageAnew) -> str:
    return "dim" if stage.recorded == stage.anew else "yellow"
