"""One look at a running stage: poll its job, read what is new, ship it, judge it live, say how far it is.

A look decides nothing by failing: an exception in it leaves the job alone. Only what it writes into ``cause.json``
(job over, gate, live rule, hours, queue) ends a stage, and :mod:`tasks.cancel` acts on nothing else.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from tasks import live, tracking
from tasks.cancel import record_cause
from tasks.errors import StageStopped
from tasks.job_log import describe_end
from tasks.launch import launcher_of, relaunch, require_job
from tasks.launchers import Job, JobState
from tasks.live.act import act, count_repair
from tasks.live.checkpoints import newest
from tasks.patience import timeout_seconds
from tasks.plan import StagePlan
from tasks.records import follow, furthest_step
from tasks.run import plan_of
from tasks.stage_dir import StageDir, read_json, write_json
from tasks.telling import tell

__all__ = ["Look", "look", "timeout_seconds"]

_PATIENCE_SECONDS = 120.0  # the launcher ends a job at its hours itself, and says so a moment later


@dataclass(frozen=True)
class Look:
    """What one look saw."""

    done: bool
    state: str
    step: int
    last_step: int
    loss: float | None
    tokens_per_gpu_second: float | None
    line: str

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary."""
        return asdict(self)


def look(stage: StageDir, now: float | None = None) -> Look:
    """Look once; raise StageStopped, after recording the cause, where the stage is over before its last step."""
    with stage.locked("watch"):
        now = time.time() if now is None else now
        decided, job = plan_of(stage), require_job(stage)
        if stage.promotion.exists():  # also by a person, over whatever ended the job
            return _look(stage, decided, JobState("succeeded", "promoted"), read_json(stage.watch) or {"step": 0})
        state = launcher_of(decided).poll(job)  # before the records: whoever is over has written all of them
        seen, judged, alarms = _read_new(stage, decided, job, state, now)
        if state.exit_code == 0 and seen["step"] >= decided.last_step:  # it was asked to save at its very last step
            state = replace(state, state="succeeded", reason="finished")
        tracking.sync(stage.run)
        _stop_if_told(stage)
        _judge_early(stage, decided, seen)
        _stop_if_late(stage, decided, seen, state, now)
        after = act(stage, decided, job, state, judged, seen)
        if after.state == "lost":
            after = _repair(stage, decided, job, judged, seen)
        if after is state:
            _stop_if_ended(stage, job, state, decided, seen)
        elif after.over:  # the attempt that this look began; the next look, which reads its records, judges its end
            after = replace(after, state="running")
        said = "".join(f"; {alarm.rule} ({alarm.action}): {alarm.says}" for alarm in alarms)
        found = _look(stage, decided, after, seen)
        found = _measuring(stage, replace(found, line=found.line + said), seen)
    tell(stage.run)  # what ends a stage raises before this; the report, which follows in any case, tells of it
    return found


def _measuring(stage: StageDir, now: Look, seen: dict[str, Any]) -> Look:
    """Keep a stage that has trained open while a probe runs that its gates still need."""
    if not now.done:
        return now
    from tasks.evaluate import still_measuring  # gates bring pandas and scipy, which most looks do without

    line = still_measuring(stage)
    write_json(stage.watch, {**seen, "measuring": line})
    return now if line is None else replace(now, done=False, state="measuring", line=f"{stage.name}: {line}")


def _read_new(
    stage: StageDir, decided: StagePlan, job: Job, state: JobState, now: float
) -> tuple[dict[str, Any], live.LiveState, list[live.Alarm]]:
    """Read and judge the records since the last look; return what is remembered between looks, and new alarms."""
    seen = read_json(stage.watch) or {"offset": 0, "step": 0, "first_look": now}
    begun = (read_json(stage.job) or {})["begun"]
    if seen.get("begun") != begun:  # a try that a person asked for has its full hours and repairs
        seen |= {"begun": begun, "repairs": 0, "running_since": None}
        seen.pop("repaired_at", None)
    before = seen["offset"]
    records, seen["offset"] = follow(stage.metrics, before)
    seen["step"] = max(seen["step"], furthest_step(records))
    for record in records:
        if record.get("kind", "step") == "step":
            seen["loss"] = _finite(record.get("loss"))
            seen["tokens_per_gpu_second"] = _finite(record.get("tokens_per_gpu_second"))
            seen["at"] = record.get("step")
            seen["phase"] = record.get("phase", "train")
    seen["new"] = len(records)
    seen["state"], seen["last_look"] = state.state, now
    if state.state == "running":
        seen["running_since"] = seen["running_since"] or state.started or now
    judged, alarms = live.observe(
        stage, decided, job, begun=begun, running=state.state == "running", new=records,
        offsets=(before, seen["offset"]), now=now,
    )  # fmt: skip
    write_json(stage.watch, seen)
    return seen, judged, alarms


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _stop_if_told(stage: StageDir) -> None:
    cause = read_json(stage.cause)
    if cause is not None:
        raise StageStopped(f"{stage.name} was stopped ({cause['cause']}): {cause['detail']}")


def _judge_early(stage: StageDir, decided: StagePlan, seen: dict[str, Any]) -> None:
    """Ask the early gates once the canary is recorded; one that says no ends the stage, unless a person gave leave."""
    canary = [span.last_step for span in decided.spans if span.phase == "canary"]
    if not canary or seen["step"] < canary[-1]:
        return
    known = read_json(stage.early)
    checks = known["checks"] if known else []
    if known is None or (seen["new"] and any(check["outcome"] == "NEED_MORE_DATA" for check in checks)):
        from tasks.evaluate import early  # gates bring pandas and scipy, which most looks do without

        checks = [check.to_json() for check in early(stage)]
    against = [check for check in checks if check["outcome"] in ("FAIL", "INVALID") and not check.get("shadow")]
    if against and not stage.leave.exists():
        first = against[0]
        detail = f"gate {first['gate']} says {first['outcome']}: {first['reason']}"
        record_cause(stage, "gate", detail)
        raise StageStopped(f"{stage.name} is stopped at step {seen['step']}: {detail}")


def _repair(stage: StageDir, decided: StagePlan, job: Job, judged: live.LiveState, seen: dict[str, Any]) -> JobState:
    """Start the next attempt of a lost job, as long as that gets somewhere; return how that is."""
    good = newest(stage, judged.rows)
    if not count_repair(stage, seen, good.step if good else 0):
        reason = f"it was lost {seen['repairs'] + 1} times without a newer checkpoint"
        _stop_if_ended(stage, job, JobState("failed", reason), decided, seen)
    return launcher_of(decided).poll(relaunch(stage, job))


def _stop_if_ended(stage: StageDir, job: Job, state: JobState, decided: StagePlan, seen: dict[str, Any]) -> None:
    if state.state == "succeeded" and seen["step"] >= decided.last_step:
        return
    if state.state not in ("succeeded", "failed", "cancelled"):
        return
    reason = state.reason
    if state.state == "succeeded":
        reason = f"the trainer exited 0 after step {seen['step']}, before its last, {decided.last_step}"
    hours_up = state.reason == "its hours were up"
    record_cause(stage, "hours" if hours_up else "job_over", reason, state="failed", exit_code=state.exit_code)
    raise StageStopped(describe_end(stage.name, reason, job.log))


def _stop_if_late(stage: StageDir, decided: StagePlan, seen: dict[str, Any], state: JobState, now: float) -> None:
    if state.state == "running":
        since = now - (seen["running_since"] or state.started or now)
        ran = since if state.ran_seconds is None else state.ran_seconds  # without its time in queues between segments
        if ran > decided.hours * 3600 + _PATIENCE_SECONDS:
            detail = f"it has run for {_hours(ran)} h; the stage has {decided.hours:g} h"
            record_cause(stage, "hours", detail)
            raise StageStopped(f"{stage.name} is stopped at step {seen['step']}: {detail}")
    if state.state == "queued":
        since = state.queued_since or (read_json(stage.job) or {}).get("submitted", now)
        limit = decided.cluster.queue_hours
        if now - since > limit * 3600 + _PATIENCE_SECONDS:
            why = f" ({state.expects})" if state.expects else ""
            detail = (
                f"it waits since {_hours(now - since)} h{why}; cluster {decided.cluster.name} has "
                f"queue_hours: {limit:g}"
            )
            record_cause(stage, "queue", detail)
            raise StageStopped(f"{stage.name} is given up: {detail}")


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f}"


def _look(stage: StageDir, decided: StagePlan, state: JobState, seen: dict[str, Any]) -> Look:
    loss, speed = seen.get("loss"), seen.get("tokens_per_gpu_second")
    line = f"{stage.name} {state.state}: step {seen['step']} of {decided.last_step}"
    line += f" ({state.expects or state.reason})" if state.state in ("queued", "unknown") and state.reason else ""
    if seen.get("phase") in ("replay", "canary"):
        line += f" ({seen['phase']} {seen['at']})"
    line += f", loss {loss:.4f}" if loss is not None else ""
    line += f", {speed:,.0f} tokens/s/GPU" if speed is not None else ""
    line += f", {state.restarts} restarts" if state.restarts else ""
    done = state.state == "succeeded"
    return Look(done, state.state, seen["step"], decided.last_step, loss, speed, line)
