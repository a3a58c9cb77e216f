"""From folders to what gates see: frames, facts, what was registered, and the stored reference curve, if any."""

from __future__ import annotations

from typing import Any

from tasks.config import files
from tasks.gates.core import EarlierStage, Evidence, When
from tasks.plan import Ladder, StagePlan
from tasks.probe import taken
from tasks.records import Metrics, read_metrics
from tasks.run import ladder_of
from tasks.stage_dir import StageDir, read_json


def evidence(stage: StageDir, moment: When = "end") -> Evidence:
    """Return all that gates may look at for ``stage``, as its folder and those before it stand now."""
    ladder = ladder_of(stage.run)
    decided = ladder.stage(stage.name)
    metrics = _read(stage, decided)
    earlier = {plan.name: _earlier(stage.run.stage(plan.name), plan) for plan in before(ladder, decided)}
    fingerprint = fingerprint_of(metrics)
    return Evidence(
        stage=decided.facts(fingerprint),
        steps=metrics.steps,
        held_out=metrics.held_out,
        earlier=earlier,
        forecast=read_json(stage.forecast),
        baseline=baseline(stage.run.experiment, fingerprint),
        previous=decided.previous,
        moment=moment,
        probes=taken(stage, decided, fingerprint),
    )


def before(ladder: Ladder, decided: StagePlan) -> list[StagePlan]:
    """Return the stages before one, in ladder order."""
    names = [plan.name for plan in ladder.stages]
    return list(ladder.stages[: names.index(decided.name)])


def fingerprint_of(metrics: Metrics) -> str:
    """Return the fingerprint of the data, as the trainer's header says it; empty where it does not."""
    return str(metrics.header.get("fingerprint") or "")


def baseline(experiment: str, fingerprint: str) -> dict[str, Any] | None:
    """Return the stored reference runs on data of this fingerprint, or None.

    ``configs/baselines/<experiment>_<first 12 of the fingerprint>.json``: ``fingerprint``, ``batch_tokens`` and
    ``runs``, each with rising ``tokens`` and the ``held_out_loss`` there.
    """
    if not fingerprint:
        return None
    return read_json(files.config_root() / "baselines" / f"{experiment}_{fingerprint[:12]}.json")


def _earlier(stage: StageDir, plan: StagePlan) -> EarlierStage:
    metrics = _read(stage, plan)
    facts = plan.facts(fingerprint_of(metrics))
    return EarlierStage(facts, metrics.steps, metrics.held_out, read_json(stage.forecast), taken(stage, plan))


def _read(stage: StageDir, plan: StagePlan) -> Metrics:
    """Read the records; their phase is what the plan says of that step, so that a trainer need not repeat it."""
    metrics = read_metrics(stage.metrics)
    step = metrics.steps["step"]
    for span in plan.spans:
        metrics.steps.loc[step.between(span.first_step, span.last_step), "phase"] = span.phase
    return metrics
