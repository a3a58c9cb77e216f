"""How each stage of a run stands, read from its folder alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tasks.ladder_outcome import why_not
from tasks.plan import StagePlan
from tasks.run import ladder_of
from tasks.stage_dir import RunDir, StageDir, read_json

State = Literal[
    "waiting",
    "forecast",
    "measuring",
    "queued",
    "running",
    "judging",
    "undecided",
    "promoting",
    "promoted",
    "refused",
    "stopped",
    "failed",
]

_JUDGED: dict[str, State] = {"PASS": "promoting", "NEED_MORE_DATA": "undecided"}  # the second waits for a person
ENDED: frozenset[State] = frozenset({"promoted", "refused", "stopped", "failed"})


@dataclass(frozen=True)
class StageNow:
    """One stage as its files say it is now."""

    name: str
    gpus: int
    emulated: bool
    state: State
    first_step: int
    last_step: int
    step: int = 0
    loss: float | None = None
    tokens_per_gpu_second: float | None = None
    phase: str = ""
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by gate
    because: str = ""  # why it was not promoted; or by whom, where a person did
    checkpoint: str = ""  # where the promoted checkpoint is kept


def stages_now(run: RunDir) -> list[StageNow]:
    """Return all stages of the run, in ladder order; none where the run has not been opened yet."""
    if not run.recipe.exists():
        return []
    return [_stage(run.stage(decided.name), decided) for decided in ladder_of(run).stages]


def _stage(stage: StageDir, decided: StagePlan) -> StageNow:
    seen = read_json(stage.watch) or {}
    promotion = read_json(stage.promotion) or {}
    checks = _checks(stage)
    state = _state(stage, seen, promotion)
    because = ""
    if state in ("refused", "stopped", "failed"):
        because = why_not(stage)
    elif promotion.get("by") == "person":
        because = f"by {promotion.get('person')}: {promotion.get('because')}"
    return StageNow(
        name=decided.name,
        gpus=decided.gpus,
        emulated=decided.emulated,
        state=state,
        first_step=decided.spans[0].first_step,
        last_step=decided.last_step,
        step=int(seen.get("at") or seen.get("step") or 0),
        loss=seen.get("loss"),
        tokens_per_gpu_second=seen.get("tokens_per_gpu_second"),
        phase=str(seen.get("phase", "")),
        checks=checks,
        because=because,
        checkpoint=str((promotion.get("checkpoint") or {}).get("path", "")),
    )


def _checks(stage: StageDir) -> dict[str, Mapping[str, Any]]:
    """Return every gate's answer so far; a later judgement of a gate stands for an earlier one."""
    found: dict[str, Mapping[str, Any]] = {}
    for path in (stage.forecast, stage.early, stage.verdict):
        for check in (read_json(path) or {}).get("checks", []):
            found[str(check["gate"])] = check
    return found


def _state(stage: StageDir, seen: Mapping[str, Any], promotion: Mapping[str, Any]) -> State:
    if promotion:
        return "promoted"
    verdict = read_json(stage.verdict)
    if verdict is not None:
        return _JUDGED.get(str(verdict.get("outcome")), "failed")
    cause = read_json(stage.cause)
    if cause is not None:
        return "failed" if cause.get("cause") == "job_over" else "stopped"
    if stage.job.exists():
        state = seen.get("state", "queued")
        if state == "succeeded":
            return "measuring" if seen.get("measuring") else "judging"
        return "queued" if state == "queued" else "running"
    forecast = read_json(stage.forecast)
    if forecast is None:
        return "waiting"
    if forecast.get("waiting_for"):
        return "measuring"
    return "forecast" if forecast.get("outcome") == "PASS" or stage.leave.exists() else "refused"
