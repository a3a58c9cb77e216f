"""What is done about an alarm: restart from the last good checkpoint while that gets somewhere, or stop the stage."""

from __future__ import annotations

from typing import Any

from tasks.cancel import cancel, record_cause
from tasks.errors import StageStopped
from tasks.launch import launcher_of, relaunch
from tasks.launchers import Job, JobState
from tasks.live.alarms import Alarm
from tasks.live.checkpoints import newest, set_aside
from tasks.live.state import LiveState
from tasks.plan import StagePlan
from tasks.records import follow
from tasks.stage_dir import StageDir, write_json

REPAIRS = 3  # attempts in a row without a newer checkpoint than the first of them began from


def act(
    stage: StageDir, decided: StagePlan, job: Job, state: JobState, live: LiveState, seen: dict[str, Any]
) -> JobState:
    """Answer the alarms of this attempt that ask for more than words; return how the job is then.

    Raises StageStopped, its cause recorded and its job cancelled. What is asked twice, after a kill, is done once.
    """
    asked = [alarm for alarm in live.alarms if alarm.attempt == job.attempt]
    stops = [alarm for alarm in asked if alarm.action == "stop"]
    restarts = [alarm for alarm in asked if alarm.action == "restart"]
    if stops:
        stop(stage, live, stops[0], seen["step"])
    if not restarts:
        return state
    first = min(restarts, key=lambda alarm: alarm.last_good_step)
    good = newest(stage, live.rows, first.last_good_step)
    if not count_repair(stage, seen, good.step if good else 0):
        begins = f"step {good.step}" if good else "the stage's start"
        stop(stage, live, first, seen["step"], f"; {REPAIRS} attempts since {begins} brought no newer good checkpoint")
    launcher = launcher_of(decided)
    launcher.cancel(job, f"restarted: {first.says}")
    if first.against_weights:
        set_aside(stage, live.rows, first.last_good_step, job.attempt)
    _, live.offset = follow(stage.metrics, live.offset)  # what it still wrote came of the same weights
    write_json(stage.live, live.to_json())
    return launcher.poll(relaunch(stage, job))


def count_repair(stage: StageDir, seen: dict[str, Any], good_step: int) -> bool:
    """Count one more attempt; False where there were enough in a row without a newer good checkpoint."""
    if good_step > seen.get("repaired_at", good_step):
        seen["repairs"] = 0
    if seen["repairs"] >= REPAIRS:
        return False
    seen |= {"repairs": seen["repairs"] + 1, "repaired_at": good_step}
    write_json(stage.watch, seen)
    return True


def stop(stage: StageDir, live: LiveState, alarm: Alarm, step: int, more: str = "") -> None:
    """End the stage for an alarm, name the checkpoint that is still good, and free its GPUs at once."""
    good = newest(stage, live.rows, alarm.last_good_step)
    kept = f"the last good checkpoint is {good.path}" if good else "no checkpoint of this stage is good"
    detail = f"live rule {alarm.rule}: {alarm.says}{more}; {kept}"
    said = {"rule": alarm.rule, "step": alarm.step, "checkpoint": str(good.path) if good else None}
    known = record_cause(stage, "live", detail, **said, checkpoint_step=good.step if good else None)
    cancel(stage)
    raise StageStopped(f"{stage.name} is stopped at step {step}: {known['detail']}")
