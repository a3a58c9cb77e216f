"""What there is to tell of a run, read from its folders: the same folders give the same events, each with a key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tasks.config.telling import Kind
from tasks.ladder_outcome import why_not
from tasks.live.checkpoints import newest
from tasks.live.state import LiveState
from tasks.run import ladder_of
from tasks.stage_dir import RunDir, StageDir, read_json

SEVERITY = {
    "stopped": "critical", "needs_decision": "warning", "queue_late": "warning", "checkpoint_old": "error",
    "paged": "warning", "promoted": "info",
}  # fmt: skip
"""How urgent each kind is, in PagerDuty's words."""


@dataclass(frozen=True)
class Event:
    """One thing that happened: told once, however often it is looked at."""

    key: str  # of the run: gpus_64.stopped.1764770000
    kind: Kind
    stage: StageDir
    says: str


def events(run: RunDir, checkpoint_hours: float) -> list[Event]:
    """Return everything that happened in a run so far, stage by stage."""
    return [found for decided in ladder_of(run).stages for found in _of(run.stage(decided.name), checkpoint_hours)]


def _of(stage: StageDir, checkpoint_hours: float) -> Iterator[Event]:
    live = LiveState.from_json(read_json(stage.live))
    for alarm in live.alarms:
        if alarm.action in ("page", "restart"):  # one incident a rule: what it says again is in the report
            key = f"{stage.name}.{alarm.rule}.{alarm.action}"
            yield Event(key, "paged", stage, f"{stage.name}, rule {alarm.rule} ({alarm.action}): {alarm.says}")
    yield from _stale(stage, live, checkpoint_hours)
    promotion = read_json(stage.promotion)
    if promotion is not None:
        by = promotion.get("person") or "its gates"
        says = f"{stage.name} is promoted by {by}: {promotion.get('because')}"
        yield Event(f"{stage.name}.promoted", "promoted", stage, says)
        return
    yield from _ended(stage)


def _ended(stage: StageDir) -> Iterator[Event]:
    """Yield why a stage that is not promoted does not go on, if it does not."""
    cause, verdict = read_json(stage.cause), read_json(stage.verdict)
    forecast = read_json(stage.forecast) or {}
    refused = forecast.get("outcome", "PASS") != "PASS" and not forecast.get("waiting_for")
    if verdict is not None and verdict["outcome"] != "PASS":
        undecided = verdict["outcome"] == "NEED_MORE_DATA"
        kind: Kind = "needs_decision" if undecided else "stopped"
        asks = f"{stage.name} waits for your decision" if undecided else f"{stage.name} goes no further"
        yield Event(f"{stage.name}.verdict.{verdict['time']:.0f}", kind, stage, f"{asks}: {why_not(stage)}")
    elif cause is not None:
        kind = "queue_late" if cause["cause"] == "queue" else "stopped"
        says = f"{stage.name} is stopped ({cause['cause']}): {cause['detail']}"
        yield Event(f"{stage.name}.{kind}.{cause['time']:.0f}", kind, stage, says)
    elif refused and not stage.leave.exists() and not stage.job.exists():
        yield Event(f"{stage.name}.refused", "stopped", stage, f"{stage.name} may not start: {why_not(stage)}")


def _stale(stage: StageDir, live: LiveState, hours: float) -> Iterator[Event]:
    """Yield that the newest checkpoint of a running stage is older than it should be."""
    seen = read_json(stage.watch) or {}
    since = seen.get("running_since")
    if seen.get("state") != "running" or since is None or stage.verdict.exists():
        return
    last = newest(stage, live.rows)
    saved = last.path.stat().st_mtime if last else 0.0
    age = (seen["last_look"] - max(saved, since)) / 3600
    if age > hours:
        what = f"its newest checkpoint, of step {last.step}, is" if last else "no checkpoint was written for"
        says = f"{stage.name} runs, and {what} {age:.1f} h{' old' if last else ''}; at most {hours:g} h is asked"
        yield Event(f"{stage.name}.checkpoint_old.{last.step if last else 0}", "checkpoint_old", stage, says)
