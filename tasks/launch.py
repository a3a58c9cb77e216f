"""Start a stage's job, or find it already there by name. Killed anywhere and called again, there is one job."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks import plan
from tasks import probe as probes
from tasks.config import files
from tasks.config.cluster import Cluster
from tasks.config.launchers import SlurmConfig
from tasks.deployment import deployment_id
from tasks.errors import CheckpointUnsound, LaunchFailed, StageRefused
from tasks.launchers import Job, Launcher
from tasks.launchers.local import LocalLauncher
from tasks.launchers.slurm import SlurmLauncher
from tasks.patience import PROBE_HOURS
from tasks.promoted import fetched
from tasks.promoted import orders as store_orders
from tasks.run import check_recipe_unchanged, ladder_of
from tasks.snapshot import snapshot
from tasks.stage_dir import JobDir, ProbeDir, RunDir, StageDir, home, read_json, write_json


def launch(stage: StageDir) -> Job:
    """Submit the stage's job if nothing stands against it, or return the one that is there.

    A job that is lost, failed or cancelled is followed by the next attempt, which goes on from the newest checkpoint.
    Raises StageRefused, CheckpointUnsound or LaunchFailed.
    """
    with stage.locked("launch"):
        decided = ladder_of(stage.run).stage(stage.name)
        launcher = launcher_of(decided)
        job = job_of(stage)
        if job is not None:
            state = launcher.poll(job).state
            if state in ("running", "succeeded") or stage.promotion.exists():
                return job
            if state in ("queued", "unknown"):  # killed between job.json and the launcher's own record
                launcher.submit(job)
                return job
            launcher.cancel(job, "a new attempt begins")  # nothing of it may write beside the next
        check_recipe_unchanged(stage.run)
        _check_forecast(stage)
        return _submit(stage, decided, launcher, job, begun=time.time())


def relaunch(stage: StageDir, job: Job) -> Job:
    """Start the next attempt of a lost job; the run's own frozen recipe decides, whatever the files say by now."""
    with stage.locked("launch"):
        now, begun = require_job(stage), (read_json(stage.job) or {})["begun"]
        if now.attempt != job.attempt or stage.cause.exists():
            return now  # another look was quicker, or the stage has been ended meanwhile
        decided = ladder_of(stage.run).stage(stage.name)
        launcher = launcher_of(decided)
        launcher.cancel(job, "lost")
        return _submit(stage, decided, launcher, job, begun=begun)


def job_of(stage: StageDir) -> Job | None:
    """Return the stage's newest job, or None before the first launch."""
    record = read_json(stage.job)
    return None if record is None else Job.from_json(record)


def launcher_of(decided: plan.StagePlan) -> Launcher:
    """Return the launcher that a stage's cluster names."""
    cluster, settings = decided.cluster, decided.cluster.launcher
    if not isinstance(settings, SlurmConfig):
        return LocalLauncher(**settings.model_dump())
    return slurm_at(cluster, settings)


def slurm_at(cluster: Cluster, settings: SlurmConfig) -> SlurmLauncher:
    """Return the launcher of a Slurm cluster's file."""
    return SlurmLauncher(
        **settings.model_dump(exclude={"nccl", "transport"}),
        network=settings.nccl.variables(),
        ssh=(*settings.transport.options, settings.transport.host) if settings.transport else (),
        memory=str(home() / "nodes" / f"{cluster.name}.json"),
    )


def job_name(stage: StageDir, attempt: int, probe: str = "") -> str:
    """Return a name that no other job on the cluster has: another installation has another home, and so another id."""
    what = f"{stage.name}.probe_{probe.replace('.', '_')}" if probe else stage.name
    return f"{stage.run.experiment}.{stage.run.run_id}.{what}.{attempt}.{deployment_id()}"


def _submit(stage: StageDir, decided: plan.StagePlan, launcher: Launcher, before: Job | None, *, begun: float) -> Job:
    """Write the orders and the job, then submit; ``begun`` is when the try that its hours are counted from began."""
    attempt = before.attempt + 1 if before else 1
    start = start_checkpoint(stage, decided)
    lift_cause(stage)
    orders = plan.train_config(decided, stage.run.run_id, attempt, start)
    orders = dataclasses.replace(orders, store=store_orders(stage, decided.cluster.store.settings()))
    write_json(stage.config, orders.to_json())
    name = job_name(stage, attempt)
    inside = probes.order_inside(stage, decided)
    job = job_at(stage, decided, name=name, attempt=attempt, nodes=decided.nodes, hours=decided.hours, before=inside)
    write_json(stage.job, {**job.to_json(), "id": job.name, "submitted": time.time(), "begun": begun})
    launcher.submit(job)
    return job


def job_at(
    where: JobDir,
    decided: plan.StagePlan,
    *,
    name: str,
    attempt: int,
    nodes: int,
    hours: float,
    before: Sequence[ProbeDir] = (),
) -> Job:
    """Return the job that runs the trainer on the orders of a folder, after those of the probes ``before``."""
    around = decided.cluster.environment
    cwd, code = code_of(where.run, decided)
    return Job(
        name=name,
        attempt=attempt,
        command=command_at(where, decided),
        nodes=nodes,
        gpus_per_node=decided.cluster.gpus_per_node,
        hours=hours,
        folder=str(where.attempt(attempt)),
        metrics=str(where.metrics),
        checkpoints=str(where.checkpoints),
        cwd=cwd,
        variables=around.variables,
        setup=around.setup,
        venv=around.venv if around.kind == "venv" else None,
        secrets=around.secrets.names if around.secrets else (),
        secrets_file=around.secrets.file if around.secrets else None,
        before=tuple(command_at(probe, decided) for probe in before),
        before_hours=PROBE_HOURS,
        before_nodes=tuple(nodes_of(probe, decided) for probe in before),
        code=code,
        image=around.image,
        container=around.kind if around.image else None,
        mounts=(*around.mounts, *(f"{path}:{path}" for path in dict.fromkeys((str(home()), cwd))))
        if around.image
        else (),
        modules=around.modules,
        sigusr1=decided.trainer.can("sigusr1") and isinstance(where, StageDir),  # nobody goes on from a probe
    )


def code_of(run: RunDir, decided: plan.StagePlan) -> tuple[str, str | None]:
    """Return the folder in which a job's commands start, and that of our own code; on Slurm both as the run found them.

    A job of this machine runs the code as it lies here, and does not outlive its day.
    """
    here = files.config_root().parent
    if not isinstance(decided.cluster.launcher, SlurmConfig):
        return str(here), None
    return str(snapshot(run, here)), str(snapshot(run, Path(__file__).resolve().parents[1]))


def nodes_of(probe: ProbeDir, decided: plan.StagePlan) -> int:
    """Return how many nodes a probe of some GPUs takes."""
    return -(-int((read_json(probe.order) or {})["gpus"]) // decided.cluster.gpus_per_node)


def command_at(where: JobDir, decided: plan.StagePlan) -> tuple[str, ...]:
    """Return the trainer's command for a folder with orders."""
    return fill_in(decided.trainer.command, placeholders(where, decided))


def placeholders(where: JobDir, decided: plan.StagePlan) -> dict[str, str]:
    """Return what the trainer's commands may name, and what it stands for."""
    python = sys.executable if decided.cluster.environment.kind == "none" else "python"
    return {"{python}": python, "{stage_dir}": str(where.path), "{config}": str(where.config)}


def lift_cause(stage: StageDir) -> None:
    """Let the stage go on: why its last attempt ended is kept beside that attempt's log."""
    job = job_of(stage)
    if job is not None and stage.cause.exists():
        os.replace(stage.cause, Path(job.folder) / stage.cause.name)


def fill_in(command: tuple[str, ...], values: dict[str, str]) -> tuple[str, ...]:
    """Return a command with its placeholders replaced; other braces stay, a shell line may hold them."""
    filled = []
    for part in command:
        for name, value in values.items():
            part = part.replace(name, value)
        filled.append(part)
    return tuple(filled)


def start_checkpoint(stage: StageDir, decided: plan.StagePlan) -> str | None:
    """Return the promoted checkpoint that the stage starts from, sound and the very one that was promoted.

    The stage before must be promoted even where this one starts from scratch: the step up is what is granted.
    """
    stages = ladder_of(stage.run).stages
    at = [other.name for other in stages].index(stage.name)
    if at == 0:
        return decided.start.checkpoint
    before = stage.run.stage(stages[at - 1].name)
    promotion = _promotion(before, decided)
    if decided.start.kind != "continue":
        return decided.start.checkpoint
    try:
        folder = fetched(before, promotion, decided.cluster.store.settings(), stage.start)
    except CheckpointUnsound as error:
        raise CheckpointUnsound(f"{stage.name} cannot start: {error}") from error
    entry = promotion["checkpoint"].get("entry")
    return str(folder / entry) if entry else str(folder)


def _promotion(before: StageDir, decided: plan.StagePlan) -> dict[str, Any]:
    run = before.run
    promotion = read_json(before.promotion)
    if promotion is None:
        name = f"{run.experiment}/{run.run_id}"
        raise StageRefused(
            f"{decided.name} may not start: {before.name} is not promoted ({before.promotion.name} is missing). Its "
            f'gates promote it, or a person: scaleup promote {name} {before.name} --because "..."'
        )
    if promotion.get("kind") != "real" and not decided.emulated:
        raise StageRefused(
            f"{decided.name} may not start on cluster {decided.cluster.name}: the promotion of {before.name} is a "
            f"{promotion.get('kind')}'s, and a rehearsal never opens a real stage; run {before.name} on real GPUs first"
        )
    return promotion


def _check_forecast(stage: StageDir) -> None:
    forecast = read_json(stage.forecast)
    if forecast is None:
        raise StageRefused(f"{stage.name} may not start: {stage.forecast.name} is missing; the forecast is made before")
    if forecast.get("outcome") != "PASS" and not stage.leave.exists():
        run = stage.run
        raise StageRefused(
            f"{stage.name} may not start: its forecast says {forecast.get('outcome')}. A person may still grant it: "
            f'scaleup promote {run.experiment}/{run.run_id} {stage.name} --because "..."'
        )


def require_job(stage: StageDir) -> Job:
    """Return the stage's newest job; raise LaunchFailed where nothing was launched."""
    job = job_of(stage)
    if job is None:
        raise LaunchFailed(f"{stage.path} has no {stage.job.name}: the stage was never launched")
    return job
