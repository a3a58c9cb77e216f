"""What every look at a running stage judges, record by record, and what it does about it.

``observe`` reads on from where the last look stopped and writes ``live.json`` whole; ``act`` restarts or stops. Killed
between the two, the next look finds the alarm unanswered and answers it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.launchers import Job
from tasks.live.alarms import Alarm
from tasks.live.expected import Known, flat, from_curve, from_forecast
from tasks.live.state import LiveState
from tasks.live.steps import Terms
from tasks.patience import PROBE_HOURS
from tasks.plan import StagePlan
from tasks.records import follow
from tasks.stage_dir import StageDir, read_json, write_json

__all__ = ["Alarm", "LiveState", "Terms", "observe", "terms_of"]


def observe(
    stage: StageDir, decided: StagePlan, job: Job, *, begun: float, running: bool, new: Sequence[Mapping[str, Any]],
    offsets: tuple[int, int], now: float,
) -> tuple[LiveState, list[Alarm]]:  # fmt: skip
    """Judge what came since the last look; return the state, kept in ``live.json``, and the alarms that are new.

    ``new`` are the records between the two ``offsets`` of ``metrics.jsonl``, as the look has read them.
    """
    kept = read_json(stage.live)
    state = LiveState.from_json(kept)
    terms = terms_of(stage, decided)
    state.begin(begun, job.attempt)
    if state.offset == offsets[0]:
        state.offset = offsets[1]
    else:  # a look was killed between its two files, or an attempt's last records were passed over
        new, state.offset = follow(stage.metrics, state.offset)
    alarms = [*state.silence(new, running, terms, now), *state.feed(new, terms, now)]
    if any(alarm.rule == "throughput" for alarm in alarms):
        from tasks.live.profile import profiled  # reads all records, with pandas: at an alarm only

        said = {id(alarm): profiled(alarm, stage.metrics) for alarm in alarms}
        alarms = [said[id(alarm)] for alarm in alarms]
        state.alarms = [said.get(id(alarm), alarm) for alarm in state.alarms]
    write_json(stage.live, state.to_json())
    return state, alarms


def terms_of(stage: StageDir, decided: StagePlan) -> Terms:
    """Return what the plan says of the stage's steps; files are read only once a rule asks for what is expected."""
    return Terms(
        spans=decided.spans,
        settings=decided.live,
        emulated=decided.emulated,
        half_precision=decided.recipe.precision == "fp16",
        leave=stage.leave.exists(),
        poll_seconds=decided.cluster.poll_seconds,
        start_seconds=len(decided.trained.stage.probe_gpus) * PROBE_HOURS * 3600.0,
        known=lambda fingerprint, start: _known(stage, decided, fingerprint, start),
    )


def _known(stage: StageDir, decided: StagePlan, fingerprint: str, start: tuple[float, float] | None) -> Known:
    """Return what is expected (a comparable reference curve, else the forecast's line, else a flat one) and noise."""
    from tasks.evidence import baseline, declared, noise  # asked once a stage; most looks do without

    comparable = {} if declared(stage) else baseline(stage.run.experiment, fingerprint) or {}
    curves = [from_curve(run.get("tokens", ()), run.get("held_out_loss", ())) for run in comparable.get("runs", ())]
    reference = next((curve for curve in curves if curve is not None), None)
    measured = noise(stage.run.experiment, decided.cluster.name, decided.gpus, fingerprint)
    expected = reference or from_forecast(read_json(stage.forecast), start) or flat()
    return Known(expected, measured.launch_sd or 0.0, measured.loss_sd or 0.0, _slowest(stage, decided))


def _slowest(stage: StageDir, decided: StagePlan) -> tuple[int, float] | None:
    """Return the last batch, in sequences, and the seconds of its step at the lowest throughput that was registered.

    One of a hundred healthy stages is slower than the lowest quantile; the rule's tolerance comes on top.
    """
    said = (read_json(stage.forecast) or {}).get("throughput") or {}
    registered = [float(value) for _, value in said.get("quantiles") or [] if float(value) > 0]
    if not registered:
        return None
    return decided.spans[-1].batch_sequences, decided.throughput_batch_tokens / decided.gpus / min(registered)
