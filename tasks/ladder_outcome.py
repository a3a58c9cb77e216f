"""How a ladder ended, from its folders alone: one sentence, and whether every stage of the run was promoted."""

from __future__ import annotations

from dataclasses import dataclass

from tasks import natures
from tasks.run import ladder_of, plan_of
from tasks.stage_dir import RunDir, StageDir, read_json


@dataclass(frozen=True)
class Ended:
    """Whether all stages were promoted, and what to tell a person."""

    promoted: bool
    sentence: str


def outcome(run: RunDir) -> Ended:
    """Return how the run stands now: all promoted, or the first stage that was not and what stopped it."""
    if not run.recipe.exists():
        return Ended(False, "the run was never opened; see the task `start`")
    stages = [run.stage(stage.name) for stage in ladder_of(run).stages]
    for stage in stages:
        if not stage.promotion.exists():
            return Ended(False, f"{stage.name} was not promoted: {why_not(stage)}")
    return Ended(True, f"all stages were promoted: {', '.join(stage.name for stage in stages)}")


def why_not(stage: StageDir) -> str:
    """Return why a stage has no promotion: what refused it, what stopped it, which gate said no."""
    for path in (stage.verdict, stage.early, stage.forecast):
        for check in (read_json(path) or {}).get("checks", []):
            if natures.speaks_against(check):
                known = natures.mark(check, plan_of(stage).emulated)
                return f"{check['gate']} says {check['outcome']}: {check['reason']}{known}"
    cause = read_json(stage.cause)
    if cause is not None:
        return f"it was stopped ({cause['cause']}): {cause['detail']}"
    if stage.verdict.exists():
        return "its gates passed, but its checkpoint was not promoted; see the task `promote`"
    return "it did not finish" if stage.job.exists() else "it never started"
