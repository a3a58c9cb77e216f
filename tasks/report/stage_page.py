"""The stage report as words and pictures: from a :class:`Story` to what the templates print."""

from __future__ import annotations

from typing import Any

from tasks import tracking
from tasks.gates.core import Check
from tasks.report import charts, foretold, todo, words
from tasks.report.check_card import check_row
from tasks.report.probes import probe_rows
from tasks.report.story import Story, log_of, tail
from tasks.tracking import summary


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
        "why": [card(story, check) for check in story.bad],
        "next_steps": todo.next_steps(story),
        "commands": todo.commands(story),
        "cost": words.sentence(todo.cost_to_go_on(story)),
        "checks": [card(story, check) for check in story.checks],
        "alarms": charts.alarm_rows(story),
        "loss_chart": charts.loss_chart(story),
        "speed_chart": charts.speed_chart(story),
        "forecasts": foretold.forecast_rows(story),
        "scores": foretold.score_rows(story),
        "score_chart": foretold.score_chart([story]),
        "probes": probe_rows(story),
        "facts": facts(story),
        "numbers": story.numbers,
        "attempts": attempts(story),
        "amended": amended(story),
        "log_tail": tail(log_of(story)) if story.outcome == "STOPPED" else "",
        "promotion": promotion(story),
        "links": links(story),
        "missing": story.missing,
        "folder": str(stage.path),
        "log": str(log_of(story)),
    }


def card(story: Story, check: Check) -> dict[str, Any]:
    """Return one of the stage's checks as the templates print it."""
    return check_row(check, emulated=story.emulated, price=story.price)


def headline(story: Story) -> str:
    """Return the verdict in one sentence."""
    name, bad = story.stage.name, ", ".join(check.gate for check in story.bad)
    counted = [check for check in story.checks if not check.shadow]
    shadows = len(story.checks) - len(counted)
    said = {
        "PASS": f"{name} passed all {len(counted)} checks" + (f", {shadows} more as shadows" if shadows else ""),
        "FAIL": f"{name} failed: {bad}",
        "NEED_MORE_DATA": f"{name} cannot be decided yet: {bad} needs more data",
        "INVALID": f"{name} could not be judged: {bad}",
        "NOT_COMPARABLE": f"{name} was compared with nothing, by a declared change: nothing was shown",
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


def amended(story: Story) -> list[str]:
    """Say of each revision of the recipe that was made for this stage what it changed, from where, who and why."""
    return [
        f"Revision {one.number} of the recipe, after step {one.step}, by {one.by} on {words.moment(one.time)}: "
        f"{'; '.join(one.said)}. {words.sentence(one.because)}"
        for one in story.revisions
    ]


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
