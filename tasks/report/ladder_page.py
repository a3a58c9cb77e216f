"""The ladder report: the stages in one table and one picture, forecast against outcome."""

from __future__ import annotations

import math
from typing import Any

from tasks import tracking
from tasks.report import charts, foretold, pictures, stage_page, todo, words
from tasks.report.story import Story, finite, told
from tasks.stage_dir import RunDir
from tasks.tracking import summary


def context(run: RunDir, stories: list[Story], missing: list[str]) -> dict[str, Any]:
    """Return all that the ladder templates name."""
    info = told(run.info)
    return {
        "experiment": run.experiment,
        "run_id": run.run_id,
        "tone": tone(stories),
        "headline": headline(stories),
        "badge": stage_page.badge(stories[0]) if stories else "",
        "emulated": any(story.emulated for story in stories),
        "note": info.get("note") or "",
        "facts": _facts(info),
        "rows": [row(story) for story in stories],
        "loss_chart": loss_chart(stories),
        "speed_chart": speed_chart(stories),
        "scores": [row for story in stories for row in foretold.score_rows(story) if row["inside"]],
        "score_chart": foretold.score_chart(stories),
        "trouble": [trouble(story) for story in stories if story.tone not in ("PASS", "WAITING", "RUNNING")],
        "links": _links(run),
        "missing": missing + ([] if stories else ["no stage has begun"]),
        "folder": str(run.path),
    }


def tone(stories: list[Story]) -> str:
    """Return the outcome of the first stage that did not pass, since none after it can have."""
    return next((story.tone for story in stories if story.tone != "PASS"), "PASS" if stories else "WAITING")


def headline(stories: list[Story]) -> str:
    """Say how far the ladder came."""
    through = [story.stage.name for story in stories if story.promotion]
    if stories and len(through) == len(stories):
        return f"All {len(stories)} stages were promoted: {', '.join(through)}"
    stopped = next((story for story in stories if not story.promotion), None)
    if stopped is None:
        return "No stage has begun"
    return (f"{', '.join(through)} promoted; " if through else "") + stage_page.headline(stopped)


def row(story: Story) -> dict[str, Any]:
    """Return one stage as a row: forecast against outcome, verdict, promotion, price."""
    expected = (story.forecast.get("throughput") or {}).get("median")
    spent = stage_page.spent_gpu_hours(story)
    reached = story.values.get("tokens_per_gpu_second")
    return {
        "name": story.stage.name,
        "outcome": story.outcome,
        "tone": story.tone,
        "sign": words.SIGNS.get(story.tone, "…"),
        "gpus": story.gpus or "",
        "forecast": words.number(expected) if expected else "none",
        "reached": words.number(reached) if reached else "",
        "score": f"{reached / expected - 1:+.1%}" if expected and reached else "",
        "held_out": _held_out(story),
        "used": f"{spent:,.3g}" if spent else "",
        "spent": words.money(spent * story.plan.cluster.price_per_gpu_hour) if spent and story.plan else "",
        "price": words.money(story.plan.cost) if story.plan else "",
        "promotion": summary.promoter(story.promotion) if story.promotion else "",
        "because": story.promotion.get("because", ""),
        "report": f"{story.stage.name}/report.html" if story.stage.report_html.exists() else "",
    }


def trouble(story: Story) -> dict[str, Any]:
    """Return what stopped a stage and what a person does about it."""
    return {
        "headline": stage_page.headline(story),
        "tone": story.tone,
        "checks": [stage_page.card(story, check) for check in story.bad],
        "next_steps": todo.next_steps(story),
        "commands": todo.commands(story),
        "cost": words.sentence(todo.cost_to_go_on(story)),
    }


def loss_chart(stories: list[Story]) -> Any:
    """Return the loss of all stages on one axis of tokens; replays are not drawn, since they count nothing."""
    curves = []
    for place, story in enumerate(stories):
        if story.metrics is not None and len(story.metrics.steps):
            steps = story.metrics.steps
            own = steps[steps["phase"].fillna("train") != "replay"]
            points = finite(own, "tokens", "loss")
            curves.append(pictures.Curve(story.stage.name, points, pictures.INKS[place % len(pictures.INKS)]))
    return pictures.chart(curves, x="tokens", y="loss (nats)", x_number=words.short, y_number=words.short)


def speed_chart(stories: list[Story]) -> Any:
    """Return tokens/s/GPU over doublings of the GPUs: reached, and the range that was forecast where one was."""
    reached, curves = [], []
    for story in stories:
        value, band = story.values.get("tokens_per_gpu_second"), charts.forecast_band(story.forecast)
        if story.gpus and value:
            reached.append((math.log2(story.gpus), value))
        if story.gpus and band:
            ends = [(math.log2(story.gpus), edge) for edge in band]
            curves.append(pictures.Curve("forecast", ends, pictures.TONES["NEED_MORE_DATA"], wide=True))
    curves.append(pictures.Curve("reached", reached, pictures.INKS[0]))
    curves.append(pictures.Curve("reached", reached, pictures.INKS[0], dots=True))
    return pictures.chart(curves, x="GPUs", y="tokens/s/GPU", x_number=_gpus, y_number=words.short)


def _gpus(doublings: float) -> str:
    return f"{2**doublings:,.0f}"


def _held_out(story: Story) -> str:
    if story.metrics is None or not len(story.metrics.held_out):
        return ""
    return f"{story.metrics.held_out['loss'].iloc[-1]:.4f}"


def _facts(info: dict[str, Any]) -> list[tuple[str, str]]:
    names = {"started": "Started", "by": "By", "host": "On", "cluster": "Cluster", "seed": "Seed", "commit": "Commit"}
    found = [(said, info[name]) for name, said in names.items() if info.get(name) is not None]
    return [(said, words.moment(value) if said == "Started" else str(value)) for said, value in found]


def _links(run: RunDir) -> list[tuple[str, str]]:
    found = [
        ("Airflow run", summary.airflow_url(run)),
        ("MLflow run", tracking.run_url(run)),
        ("MLflow: stages side by side", tracking.compare_url(run)),
        ("MLflow: loss of all stages on one axis of tokens", tracking.curves_url(run)),
    ]
    return [(name, url) for name, url in found if url]
