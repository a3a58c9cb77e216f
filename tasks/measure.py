"""NEED_MORE_DATA buys data: the probe that an undecided gate names is run as a job of its own, within a budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tasks import probe as probes
from tasks.launch import job_at, job_name, launcher_of, nodes_of
from tasks.launchers import Job
from tasks.patience import PROBE_HOURS
from tasks.plan import StagePlan
from tasks.records import furthest_step
from tasks.run import plan_of
from tasks.stage_dir import ProbeDir, StageDir, read_json, write_json

if TYPE_CHECKING:
    from tasks.gates.core import Check, Measurement


def pending(stage: StageDir) -> str | None:
    """Return a line about the probe that runs for this stage, or None when none does; one not yet submitted is."""
    with stage.locked("probe"):
        decided = plan_of(stage)
        for probe, job in _bought(stage, decided):
            launcher = launcher_of(decided)
            state = launcher.poll(job).state
            if state in ("queued", "unknown") and not probe.metrics.exists():
                launcher.submit(job)  # killed between order and submission, or still waiting: by name it is one job
            if state in ("queued", "running", "unknown"):
                return _line(probe, state)
    return None


def buy(stage: StageDir, checks: Sequence[Check], moment: str) -> str | None:
    """Submit the probe that the undecided ``checks`` ask for; return a line about it, or None where none is to be had.

    None: nothing is undecided, something already speaks against the stage, the stage's ``probes`` are spent, or the
    probe costs more than the error it would prevent.
    """
    with stage.locked("probe"):
        decided = plan_of(stage)
        asking = wanted(checks)
        number = len(_bought(stage, decided)) + 1
        if asking is None or number > decided.trained.stage.probes:
            return None
        check, measurement = asking
        probe = stage.probe(f"gpus_{measurement.gpus}.{number}")
        said: dict[str, Any] = {"gate": check.gate, "moment": moment, "says": measurement.says, "number": number}
        said |= {"gpu_hours": measurement.gpu_hours, "wrong_gpu_hours": measurement.wrong_gpu_hours}
        probes.order(probe, stage, decided, gpus=measurement.gpus, steps=measurement.steps, inside=False, **said)
        job = _job(stage, decided, probe)
        write_json(probe.job, job.to_json())
        launcher_of(decided).submit(job)
        return f"{check.gate} is undecided; {_line(probe, 'queued')}"


def wanted(checks: Sequence[Check]) -> tuple[Check, Measurement] | None:
    """Return the cheapest probe that an undecided check names and that is worth its price, with the check."""
    enforced = [check for check in checks if not check.shadow]
    if any(check.outcome in ("FAIL", "INVALID") for check in enforced):
        return None
    found = [
        (check, check.measurement)
        for check in enforced
        if check.outcome == "NEED_MORE_DATA" and check.measurement is not None and check.measurement.kind == "probe"
    ]
    worth = [(c, m) for c, m in found if m.wrong_gpu_hours is None or m.gpu_hours < m.wrong_gpu_hours]
    return min(worth, key=lambda pair: pair[1].gpu_hours, default=None)


def gpu_hours(stage: StageDir) -> float:
    """Return what the probes bought for a stage cost by their orders; those inside its allocation are in its hours."""
    return sum(float((read_json(probe.order) or {}).get("gpu_hours") or 0.0) for probe in stage.probes)


def end_probes(stage: StageDir, because: str) -> None:
    """End every probe of the stage that still runs; quiet where none does."""
    with stage.locked("probe"):
        decided = plan_of(stage)
        for _, job in _bought(stage, decided):
            if not launcher_of(decided).poll(job).over:
                launcher_of(decided).cancel(job, because)


def _bought(stage: StageDir, decided: StagePlan) -> list[tuple[ProbeDir, Job]]:
    """Return the probes with a job of their own, each with its job; one killed before it had one gets it now."""
    found = []
    for probe in stage.probes:
        if (read_json(probe.order) or {}).get("inside"):
            continue
        known = read_json(probe.job)
        found.append((probe, Job.from_json(known) if known else _job(stage, decided, probe)))
    return found


def _job(stage: StageDir, decided: StagePlan, probe: ProbeDir) -> Job:
    nodes = nodes_of(probe, decided)
    name = job_name(stage, 1, probe.name)
    return job_at(probe, decided, name=name, attempt=1, nodes=nodes, hours=min(decided.hours, PROBE_HOURS))


def _line(probe: ProbeDir, state: str) -> str:
    said = read_json(probe.order) or {}
    at = f", step {_furthest(probe)} of {said['steps']}" if state == "running" else ""
    return f"a probe of {said['steps']} steps on {said['gpus']} GPUs is {state}{at}"


def _furthest(probe: ProbeDir) -> int:
    from tasks.records import follow

    return furthest_step(follow(probe.metrics, 0)[0])
