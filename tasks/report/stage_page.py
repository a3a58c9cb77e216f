"""The stage report as words and pictures: from a :class:`Story` to what the templates print."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import tracking
from tasks.gates.core import Check
from tasks.report import pictures, words
from tasks.report.story import Story, claim_of, earlier_stages, finite, story_of, tail
from tasks.tracking import summary

if TYPE_CHECKING:
    from tasks.plan import StagePlan


_FORECASTS = {
    "throughput": "tokens/s/GPU",
    "held_out_loss": "Held-out loss",
    "wall_seconds": "Seconds",
    "gpu_hours": "GPU-hours",
    "cost": "US dollars",
    "spending": "Spending",
    "uninterrupted": "Failures",
    "wrong": "If it is wrong",
}


def context(story: Story) -> dict[str, Any]:
    """Return all that the stage templates name."""
    stage, run = story.stage, story.stage.run
    return {
        "experiment": run.experiment,
        "run_id": run.run_id,
        "name": stage.name,
        "tone": story.tone,
        "headline": headline(story),
        "badge": badge(story),
        "next_steps": next_steps(story),
        "override": override(story),
        "cost": cost_to_go_on(story),
        "checks": [check_row(check) for check in story.checks],
        "loss_chart": loss_chart(story),
        "speed_chart": speed_chart(story),
        "forecasts": forecast_rows(story),
        "facts": facts(story),
        "numbers": story.numbers,
        "attempts": attempts(story),
        "log_tail": tail(log_of(story)) if story.outcome == "STOPPED" else "",
        "promotion": promotion(story),
        "links": links(story),
        "missing": story.missing,
        "folder": str(stage.path),
        "log": str(log_of(story)),
    }


def headline(story: Story) -> str:
    """Return the verdict in one sentence."""
    name, bad = story.stage.name, ", ".join(check.gate for check in story.bad)
    said = {
        "PASS": f"{name} passed all {len(story.checks)} checks",
        "FAIL": f"{name} failed: {bad}",
        "NEED_MORE_DATA": f"{name} cannot be decided yet: {bad} needs more data",
        "INVALID": f"{name} could not be judged: {bad}",
        "REFUSED": f"{name} was refused before it started: {bad}",
        "STOPPED": f"{name} was stopped: {story.cause.get('detail', 'no reason is recorded')}",
        "RUNNING": f"{name} is under way",
        "WAITING": f"{name} has not begun",
    }
    return said.get(story.outcome, f"{name}: {story.outcome}")


def badge(story: Story) -> str:
    """Say whether the GPUs are real."""
    if story.emulated is None:
        return "nothing says whether its GPUs are real"
    return "rehearsal on emulated GPUs: real mathematics, modelled speed" if story.emulated else "real GPUs"


def check_row(check: Check) -> dict[str, Any]:
    """Return one check as the templates print it."""
    confidence = check.thresholds.get("confidence")
    return {
        "gate": check.gate,
        "outcome": str(check.outcome),
        "sign": words.SIGNS[check.outcome],
        "says": words.SAYS[check.outcome],
        "claim": claim_of(check),
        "reason": check.reason,
        "distance": words.distance(check.estimate, check.limit, check.unit) if check.outcome != "PASS" else "",
        "sureness": words.sureness(check.interval, check.limit, check.unit, check.n, confidence),
        "next_step": check.next_step if check.outcome != "PASS" else "",
        "picture": pictures.check_picture(
            check.outcome, check.estimate, check.interval, check.limit, lambda v: words.number(v, check.unit)
        ),
        "unit": check.unit,
        "small": " · ".join(x for x in (check.window, check.against, check.method) if x),
        "thresholds": ", ".join(f"{name} {value}" for name, value in check.thresholds.items()),
    }


def next_steps(story: Story) -> list[str]:
    """Return what a person does now, the most useful first."""
    if story.outcome == "PASS":
        if not story.promotion:
            return ["The gates passed, but the checkpoint is not promoted: see what the promotion said."]
        after = story.next_plan.name if story.next_plan else None
        return [f"Nothing: {after} may start." if after else "Nothing: this run has no stage after this one."]
    found = list(dict.fromkeys(check.next_step for check in story.bad if check.next_step))
    if story.outcome == "STOPPED":
        found.insert(0, f"Read the end of {log_of(story)}.")
    if override(story):
        found.append("Or go on in spite of it, by name and with a reason, which this report will then state.")
    return found or ["Wait: nothing is decided yet."]


def override(story: Story) -> str:
    """Return the command by which a person goes on in spite of the gates; empty where nothing stands against it."""
    if story.promotion or story.outcome in ("PASS", "RUNNING", "WAITING"):
        return ""
    run = story.stage.run
    return f'scaleup promote {run.experiment}/{run.run_id} {story.stage.name} --because "..."'


def cost_to_go_on(story: Story) -> str:
    """Say what the next stage costs at most; of a refused stage, what it would cost itself."""
    plan = story.plan if story.outcome in ("REFUSED", "WAITING") else story.next_plan
    if story.plan is None:
        return "unknown: the plan of the run cannot be read"
    if plan is None:
        return "nothing more: this run has no stage after this one"
    expected = (story.forecast.get("gpu_hours") or {}).get("median") if plan is story.plan else None
    return price_of(plan) + (f"; {words.hours(expected)} are forecast" if expected else "")


def price_of(plan: StagePlan) -> str:
    """Say what a stage costs at most."""
    price = plan.cluster.price_per_gpu_hour
    said = f"{plan.name}: at most {words.hours(plan.gpu_hours)}, {words.money(plan.cost)}"
    said += f" ({plan.gpus} GPUs for {plan.gpu_hours / plan.gpus:g} h at {words.money(price)})"
    return said + ("; that is the real stage's price, rehearsed it costs this machine's time" if plan.emulated else "")


def loss_chart(story: Story) -> Any:
    """Return the loss over tokens: this stage's phases, held-out points, and the stages before it on the same axis."""
    curves = []
    for place, earlier in enumerate(earlier_stages(story.stage)):
        told = story_of(earlier)
        if told.metrics is not None:
            train = _phases(told.metrics.steps, "train", "canary")
            ink = pictures.INKS[(place + 1) % len(pictures.INKS)]
            curves.append(pictures.Curve(earlier.name, finite(train, "tokens", "loss"), ink, faint=True))
    bands = []
    if story.metrics is not None:
        steps, own = story.metrics.steps, pictures.INKS[0]
        train, replay = _phases(steps, "train", "canary"), _phases(steps, "replay")
        canary = finite(_phases(steps, "canary"), "tokens", "loss")
        curves.append(pictures.Curve(story.stage.name, finite(train, "tokens", "loss"), own))
        curves.append(pictures.Curve("replay (counted once)", finite(replay, "tokens", "loss"), "#111", dashed=True))
        held = finite(story.metrics.held_out, "tokens", "loss")
        curves.append(pictures.Curve("held-out loss", held, pictures.TONES["FAIL"], dots=True))
        if canary:
            bands.append(pictures.Band("canary", canary[0][0], canary[-1][0], pictures.TONES["NEED_MORE_DATA"], True))
    return pictures.chart(curves, bands, x="tokens", y="loss (nats)", x_number=words.short, y_number=words.short)


def speed_chart(story: Story) -> Any:
    """Return tokens/s/GPU over steps with what was forecast."""
    if story.metrics is None:
        return ""
    curves = []
    for phases, name, ink, dashed in (
        (("train", "canary"), "tokens/s/GPU", pictures.INKS[0], False),
        (("replay",), "replay (not judged on speed)", "#111", True),
    ):
        points = finite(_phases(story.metrics.steps, *phases), "step", "tokens_per_gpu_second")
        curves.append(pictures.Curve(name, points, ink, dashed))
    expected = forecast_band(story.forecast)
    bands = [pictures.Band("forecast", *expected, pictures.TONES["PASS"])] if expected else []
    return pictures.chart(curves, bands, x="step", y="tokens/s/GPU", x_number=words.short, y_number=words.short)


def forecast_rows(story: Story) -> list[tuple[str, str, str]]:
    """Return (what, median and range, how it was made) of everything that was registered before the stage started."""
    found = []
    for key, name in _FORECASTS.items():
        said = story.forecast.get(key)
        if not isinstance(said, Mapping):
            continue
        values = [said.get(part) for part in ("median", "low", "high")]
        median, low, high = (words.number(v) if isinstance(v, int | float) else "unknown" for v in values)
        span = f"{median} ({low} to {high})" if "unknown" not in (median, low, high) else median
        if "median" in said or said.get("says"):
            found.append((name, span if "median" in said else "", str(said.get("says", ""))))
    return found


def forecast_band(forecast: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the range of tokens/s/GPU that was forecast, where one was."""
    expected = forecast.get("throughput") or {}
    low, high = expected.get("low"), expected.get("high")
    if low is None or high is None:
        low, high = expected.get("interval") or (expected.get("median"), expected.get("median"))
    return (float(low), float(high)) if low is not None and high is not None else None


def _phases(steps: Any, *wanted: str) -> Any:
    return steps[steps["phase"].fillna("train").isin(wanted)] if len(steps) else steps


def facts(story: Story) -> list[tuple[str, str]]:
    """Return what was run, as pairs."""
    plan, config = story.plan, story.config
    found: list[tuple[str, Any]] = []
    if plan is not None:
        found += [("GPUs", f"{plan.gpus} on {plan.nodes} nodes of {plan.cluster.name}")]
    elif story.gpus:
        found += [("GPUs", story.gpus)]
    if config:
        spans = config.get("spans", [])
        phases = [f"{s['phase']} {s['first_step']}..{s['first_step'] + s['steps'] - 1}" for s in spans]
        found.append(("Steps", ", ".join(phases)))
        found.append(("Batch", ", ".join(dict.fromkeys(f"{s['batch_sequences']:,} sequences" for s in spans))))
        found.append(("Learning rate", ", ".join(dict.fromkeys(f"{s['learning_rate']:g}" for s in spans))))
        found.append(("Start", f"{config['start']['kind']} {config['start'].get('checkpoint') or ''}".strip()))
    if plan is not None and plan.previous and not plan.steps_in("replay"):
        judged = [gate for gate in ("resume_parity", "canary") if gate in plan.gates]
        decides = f"{' and '.join(judged)} {'decides' if len(judged) == 1 else 'decide'} in its place" if judged else ""
        said = f"none: the trainer {plan.trainer.name} cannot replay, so {decides or 'no gate compares the hand-over'}"
        found.append(("Replay", said))
    if story.metrics is not None and len(story.metrics.steps):
        found.append(("Used", used(story)))
    return [(name, str(value)) for name, value in found]


def used(story: Story) -> str:
    """Say what the stage has used so far: GPU-hours of its recorded steps, and their price."""
    spent = spent_gpu_hours(story)
    if spent is None:
        return "unknown"
    said = words.hours(spent)
    if story.plan is not None:
        said += f", {words.money(spent * story.plan.cluster.price_per_gpu_hour)}"
    return said + (" (modelled)" if story.emulated else "")


def spent_gpu_hours(story: Story) -> float | None:
    """Return the GPU-hours of the recorded steps, None where nothing says them."""
    if story.metrics is None or story.gpus is None:
        return None
    return float(story.metrics.steps["step_seconds"].sum()) * story.gpus / 3600


def attempts(story: Story) -> list[tuple[int, str, str]]:
    """Return (attempt, steps that count, log) of every attempt."""
    if story.metrics is None or not story.metrics.attempts:
        return []
    steps, found = story.metrics.steps, []
    for number in range(1, story.metrics.attempts + 1):
        own = steps[steps["attempt"] == number]["step"]
        said = f"steps {int(own.min())} to {int(own.max())} count" if len(own) else "no step of it counts"
        found.append((number, said, str(story.stage.attempt(number) / "log.txt")))
    return found


def log_of(story: Story) -> Path:
    """Return the log of the newest attempt."""
    return story.stage.attempt(int(story.job.get("attempt") or 1)) / "log.txt"


def promotion(story: Story) -> str:
    """Say who promoted the stage, why, and what."""
    record = story.promotion
    if not record:
        leave = story.leave
        return f"Leave to go on by {leave.get('person')}: {leave.get('because')}" if leave else "Not promoted."
    place = record.get("checkpoint") or {}
    said = f"Promoted by {summary.promoter(record)} on {words.moment(record.get('time'))}: {record.get('because')}."
    said += f" Checkpoint of step {place.get('step')} at {place.get('path')}, manifest {place.get('manifest_sha256')}."
    if record.get("kind") == "rehearsal":
        said += " It is a rehearsal's promotion and opens no real stage."
    return said


def links(story: Story) -> list[tuple[str, str]]:
    """Return (words, address) of everywhere else this stage can be seen."""
    run = story.stage.run
    found = [
        ("The ladder's report", "../report.html" if run.path.exists() else None),
        ("Airflow run", summary.airflow_url(run)),
        ("MLflow run of this stage", tracking.stage_url(story.stage)),
        ("MLflow: stages side by side", tracking.compare_url(run)),
        ("MLflow: loss of all stages on one axis of tokens", tracking.curves_url(run)),
    ]
    return [(name, url) for name, url in found if url]
