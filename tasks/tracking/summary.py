"""What MLflow shows of a run and a stage beside curves and parameters: few summary metrics, tags, a description.

Every stage has the same names, so that MLflow's own compare page lines stages up. All is read from the folders.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tasks import natures
from tasks.errors import ScaleupError
from tasks.records import Metrics, read_metrics
from tasks.revisions import revisions
from tasks.stage_dir import RunDir, StageDir, read_json

_LONGEST_TAG = 5000
_WARM_UP = 10  # steps after a start that say nothing of steady speed
_CHECK_METRICS = {
    "steady_throughput": "tokens_per_gpu_second",
    "scaling_efficiency": "efficiency_vs_previous",
    "replay_parity": "replay_difference",
    "resume_parity": "resume_difference",
    "canary": "canary_vs_forecast",
}
"""Gate -> the summary metric that holds its estimate."""


def stages(run: RunDir) -> list[StageDir]:
    """Return the stages of a run that have begun, smallest first."""
    found = [
        path for path in run.path.glob("*/") if (path / "forecast.json").exists() or (path / "config.json").exists()
    ]
    return [StageDir(path) for path in sorted(found, key=lambda p: (_digits(p.name), p.name))]


def is_over(stage: StageDir) -> bool:
    """Say whether no record of the stage will be written or repeated any more."""
    ended = stage.cause.exists() or stage.verdict.exists()
    return ended or (read_json(stage.watch) or {}).get("state") == "succeeded"


def milliseconds(value: Any) -> int | None:
    """Return a moment of one of our files (seconds since the epoch, or ISO 8601) in ms since the epoch."""
    if isinstance(value, int | float):
        return round(value * 1000)
    try:
        return round(datetime.fromisoformat(str(value)).timestamp() * 1000)
    except ValueError:
        return None


def airflow_url(run: RunDir) -> str | None:
    """Return the address of the DAG run that made this run, where Airflow made it and its address is known."""
    base = os.environ.get("SCALEUP_AIRFLOW_URL")
    try:
        origin = (read_json(run.info) or {}).get("origin") or {}
    except ScaleupError:
        return None
    dag, dag_run = origin.get("dag_id"), origin.get("dag_run_id")
    if base and dag and dag_run:
        return f"{base.rstrip('/')}/dags/{quote(str(dag), safe='')}/runs/{quote(str(dag_run), safe='')}"
    recorded = str(origin.get("url") or "")  # where Airflow was when the run began
    return recorded if recorded.startswith(("http://", "https://")) else None


def began(stage: StageDir) -> int:
    """Return when the stage began, in ms, from what was written first; the same at every look."""
    for path in (stage.forecast, stage.config):
        value = read_json(path)
        if value is not None:
            return milliseconds(value.get("time")) or int(path.stat().st_mtime * 1000)
    return 0


def opened(run: RunDir) -> int:
    """Return when the run was opened, in ms; where nothing says so, when its first stage began."""
    started = milliseconds((read_json(run.info) or {}).get("started"))
    return started or min(map(began, stages(run)), default=0)


def ended(stage: StageDir) -> int | None:
    """Return when the stage was judged, stopped or refused, in ms; None while it is neither."""
    for path in (stage.verdict, stage.cause, *([stage.forecast] if _refused(stage) else [])):
        value = read_json(path)
        if value is not None:
            return milliseconds(value.get("time")) or int(path.stat().st_mtime * 1000)
    return None


def header(metrics: Path) -> dict[str, Any]:
    """Return the header that the trainer wrote first, or an empty one."""
    try:
        with metrics.open() as file:
            first = json.loads(file.readline() or "{}")
    except (FileNotFoundError, ValueError):
        return {}
    return first if isinstance(first, dict) and first.get("kind") == "header" else {}


def metrics(stage: StageDir) -> tuple[dict[str, float], int, int]:
    """Return (summary metrics, tokens, ms) of the records so far; MLflow's compare page draws the first one."""
    from tasks import score  # with it come the gates, which most looks do without

    try:
        records = read_metrics(stage.metrics)
    except ScaleupError:
        return {}, 0, 0  # the gates say what is wrong with the file; here it only has no summary
    if records.steps.empty:
        return {}, 0, 0
    found = dict(_from_steps(records)) | dict(_costs(stage, records))
    for check in (read_json(stage.verdict) or {}).get("checks", []):
        if check["gate"] in _CHECK_METRICS and check.get("estimate") is not None:
            found[_CHECK_METRICS[check["gate"]]] = float(check["estimate"])
        if check["gate"] == "loss_near_baseline" and None not in (check.get("estimate"), check.get("limit")):
            # Its estimate is a loss or an excess over a curve, as there is a curve or none; the margin is one thing.
            found["loss_margin"] = float(check["limit"]) - float(check["estimate"])
    found |= score.summary(stage)
    last = records.steps.iloc[-1]
    time = milliseconds(float(last["time"])) if last["time"] == last["time"] else None
    return found, int(last["tokens"]), time or began(stage)


def _from_steps(records: Metrics) -> Iterator[tuple[str, float]]:
    phase = records.steps["phase"].fillna("train")
    train = records.steps[phase == "train"]
    train = train if len(train) else records.steps
    steady = train.iloc[_WARM_UP:] if len(train) > 2 * _WARM_UP else train
    for name in ("tokens_per_gpu_second", "step_seconds", "memory_gib", "grad_norm"):
        if steady[name].notna().any():
            yield name, float(steady[name].mean())
    yield "train_loss", float(train["loss"].iloc[-20:].mean())
    yield "tokens", float(records.steps["tokens"].max())  # held_out_loss is a curve, whose last point is the summary


def _costs(stage: StageDir, records: Metrics) -> Iterator[tuple[str, float]]:
    config = read_json(stage.config)
    if config is None:
        return
    gpu_hours = float(records.steps["step_seconds"].sum()) * config["gpus"] / 3600
    yield "gpu_hours", gpu_hours
    price = price_per_gpu_hour(stage)
    if price is not None:
        yield "cost", gpu_hours * price


def price_per_gpu_hour(stage: StageDir) -> float | None:
    """Return what a GPU-hour of the stage's cluster costs, from the recipe as it was frozen."""
    from tasks.run import ladder_of

    try:
        return float(ladder_of(stage.run).stage(stage.name).cluster.price_per_gpu_hour)
    except (ScaleupError, KeyError, OSError):
        return None


def _newest_alarm(stage: StageDir) -> str | None:
    """Return in one line what the live rules said last, notes left out."""
    alarms = [alarm for alarm in (read_json(stage.live) or {}).get("alarms", []) if alarm["action"] != "note"]
    return f"{alarms[-1]['rule']} ({alarms[-1]['action']}): {alarms[-1]['says']}" if alarms else None


def stage_tags(stage: StageDir) -> dict[str, str]:
    """Return the tags of a stage's MLflow run: verdict, promotion, attempts, honesty of the numbers, links."""
    job, promotion = read_json(stage.job) or {}, read_json(stage.promotion)
    verdict, forecast = read_json(stage.verdict), read_json(stage.forecast) or {}
    found: dict[str, Any] = {
        "scaleup.stage": stage.name,
        "scaleup.folder": str(stage.path),
        "scaleup.airflow": airflow_url(stage.run),
        "scaleup.job": job.get("name"),
        "scaleup.attempt": job.get("attempt"),
        "scaleup.forecast": forecast.get("outcome"),
        "scaleup.step_axis": "tokens",
        "scaleup.cause": (read_json(stage.cause) or {}).get("cause"),
        "scaleup.live": _newest_alarm(stage),
    }
    found |= numbers_tags(stage) | _revision_tags(stage)
    if verdict is not None:
        found["scaleup.verdict"] = verdict.get("outcome")
        bad = [c for c in verdict.get("checks", []) if natures.speaks_against(c)]
        found["scaleup.failed_gates"] = ", ".join(c["gate"] for c in bad) or None
        found["mlflow.note.content"] = _note(stage, verdict)
    if promotion is not None:
        found["scaleup.promotion"] = f"by {promoter(promotion)}: {promotion.get('because')}"
        found["scaleup.promotion_kind"] = promotion.get("kind")
    return {name: str(value)[:_LONGEST_TAG] for name, value in found.items() if value is not None}


def _revision_tags(stage: StageDir) -> dict[str, str]:
    """Return which revision of the recipe the stage runs under, and what was amended in it."""
    own = [revision for revision in revisions(stage.run) if revision.stage == stage.name]
    if not own:
        return {}
    said = [f"{one.number}, after step {one.step}, by {one.by}: {'; '.join(one.said)} ({one.because})" for one in own]
    return {"scaleup.revision": str(own[-1].number), "scaleup.amended": "\n".join(said)}


def promoter(promotion: Mapping[str, Any]) -> str:
    """Return who promoted: ``gates``, or the person's name."""
    return str(promotion.get("person") or promotion.get("by") or "unknown")


def numbers_tags(stage: StageDir) -> dict[str, str]:
    """Return which fields are real, measured, modelled and synthetic, as the trainer's header says."""
    fields: Mapping[str, str] = header(stage.metrics).get("fields") or {}
    found = {}
    for nature in ("real", "measured", "modelled", "synthetic"):
        names = sorted(name for name, is_a in fields.items() if is_a == nature)
        if names:
            found[f"scaleup.numbers.{nature}"] = ", ".join(names)
    config = read_json(stage.config)
    if config is not None:
        found["scaleup.emulated"] = str(bool(config.get("emulation"))).lower()
    return found


def _note(stage: StageDir, verdict: Mapping[str, Any]) -> str:
    rows = [
        f"| {c['gate']} | **{c['outcome']}** | {str(c.get('reason', '')).replace('|', '/')} |"
        for c in verdict.get("checks", [])
    ]
    axis = (
        "The step axis of every curve is tokens. `replay/` repeats steps of the stage before and counts nothing twice."
    )
    return "\n".join([f"**{verdict.get('outcome')}**  {axis}", "", "| gate | outcome | why |", "|---|---|---|", *rows])


def run_tags(run: RunDir, compare: str | None) -> dict[str, str]:
    """Return the tags of the parent run, with a description that says how far the ladder came."""
    lines = [f"| {s.name} | {_state(s)} |" for s in stages(run)]
    links = [f"[the stages side by side]({compare})" if compare else "", _link("the Airflow run", airflow_url(run))]
    text = [" · ".join(x for x in links if x), "", "| stage | |", "|---|---|", *lines, "", f"Folder: `{run.path}`"]
    found = {
        "scaleup.folder": str(run.path),
        "scaleup.airflow": airflow_url(run),
        "scaleup.note": (read_json(run.info) or {}).get("note") or None,
        "mlflow.note.content": "\n".join(text),
    }
    return {name: str(value)[:_LONGEST_TAG] for name, value in found.items() if value is not None}


def stage_status(stage: StageDir) -> str:
    """Return MLflow's word for the stage's state: RUNNING, FINISHED, FAILED or KILLED."""
    verdict, cause = read_json(stage.verdict), read_json(stage.cause)
    if verdict is not None:
        return "FINISHED" if verdict.get("outcome") == "PASS" or stage.promotion.exists() else "FAILED"
    if cause is not None:
        return "KILLED" if cause.get("cause") == "person" else "FAILED"
    return "FAILED" if _refused(stage) else "RUNNING"


def _refused(stage: StageDir) -> bool:
    return (read_json(stage.forecast) or {}).get("outcome", "PASS") != "PASS" and not stage.config.exists()


def run_status(run: RunDir) -> str:
    """Return MLflow's word for the ladder's state."""
    begun = stages(run)
    bad = [s for s in begun if stage_status(s) in ("FAILED", "KILLED")]
    if bad:
        return stage_status(bad[-1])
    return "FINISHED" if begun and begun[-1].promotion.exists() and begun[-1].name == _last_stage(run) else "RUNNING"


def _last_stage(run: RunDir) -> str | None:
    names = (read_json(run.info) or {}).get("stages") or [None]
    return str(names[-1])


def _state(stage: StageDir) -> str:
    verdict, promotion = read_json(stage.verdict), read_json(stage.promotion)
    said = "under way" if verdict is None else str(verdict.get("outcome"))
    if verdict is None and stage_status(stage) == "FAILED":
        said = "refused before it started" if not stage.config.exists() else "stopped"
    return f"{said}, promoted by {promoter(promotion)}" if promotion else said


def _link(words: str, url: str | None) -> str:
    return f"[{words}]({url})" if url else ""


def _digits(name: str) -> int:
    return int("".join(c for c in name if c.isdigit()) or 0)
