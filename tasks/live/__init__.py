"""What every look at a running stage judges, record by record, and what it does about it.

``observe`` reads on from where the last look stopped and writes ``live.json`` whole; ``act`` restarts or stops. Killed
between the two, the next look finds the alarm unanswered and answers it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.launchers import Job
from tasks.live.alarms import Alarm
from tasks.live.expected import Expected, flat, from_curve, from_forecast
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
        expected=lambda fingerprint, start: _expected(stage, fingerprint, start),
    )


def _expected(stage: StageDir, fingerprint: str, start: tuple[float, float] | None) -> Expected:
    """Return the reference curve on the same data where one is stored, else the forecast's line, else a flat one."""
    from tasks.evidence import baseline  # pandas: asked once a stage, when the loss rule has its first window

    runs = (baseline(stage.run.experiment, fingerprint) or {}).get("runs") or []
    curves = [from_curve(list(run.get("tokens", ())), list(run.get("held_out_loss", ()))) for run in runs]
    reference = next((curve for curve in curves if curve is not None), None)
    return reference or from_forecast(read_json(stage.forecast), start) or flat()
