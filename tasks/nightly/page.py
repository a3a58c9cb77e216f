"""The page of a night: one screen that says what moved, by how much, since when, what changed, and what to type."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any

from tasks.nightly import baseline, incidents, points
from tasks.nightly.judge import SERIES, night_value
from tasks.nightly.night import NightDir
from tasks.nightly.points import Point, comparable
from tasks.nightly.sparkline import Dot, sparkline
from tasks.report import render, words
from tasks.stage_dir import read_json, write_whole

REPORTS = "nightly reports"
TONES = {
    "alarm": "FAIL", "open": "FAIL", "improved": "PASS", "recovered": "PASS", "steady": "PASS", "suspect": "INVALID",
    "unconfirmed": "PASS", "learning": "WAITING", "missing": "NOT_COMPARABLE",
}  # fmt: skip
"""Colours of a judgement, those of a gate's outcome; the word stands beside them."""
_WORST = ("alarm", "open", "suspect", "recovered", "improved", "unconfirmed", "learning", "steady")
_NOT_EVERY_CASE = ("recovery_seconds",)  # measured where a run was restarted


def write_page(night: str) -> Path:
    """Write the page of a concluded night, keep it in MLflow where there is one, and return where it lies."""
    folder = NightDir(night)
    write_whole(folder.report, render("nightly.html.j2", context(night)))
    _ship(night)
    return folder.report


def context(night: str) -> dict[str, Any]:
    """Return all that the page shows."""
    folder = NightDir(night)
    record, results = read_json(folder.conclusion) or {}, folder.results()
    rows = [row(result) for result in results.values()]
    shown = [name for name in SERIES if name not in _NOT_EVERY_CASE or any(name in one["cells"] for one in rows)]
    mine = [found for found in incidents.all_open() if found["case"] in results]
    return {
        "night": night,
        "tone": "FAIL" if record.get("red") else "PASS",
        "verdict": "RED" if record.get("red") else "GREEN",
        "headline": words.sentence(str(record.get("sentence", ""))),
        "series": [(name, SERIES[name].unit) for name in shown],
        "rows": rows,
        "incidents": [incident(found, results) for found in mine],
        "news": [line for line in record.get("news", []) if not any(incidents.name(f) in line for f in mine)],
        "not_run": record.get("not_run", {}),
        "left_out": record.get("left_out", {}),
        "notices": record.get("notices", []),
        "folder": str(folder.path),
        "missing": [],
        "links": [],
    }


def row(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return one case: its verdict, and a cell a series with the sparkline of its last sixty nights."""
    case, judged = str(result["case"]), {str(one["series"]): one for one in result["judgements"]}
    states = [str(one["state"]) for one in judged.values()]
    worst = next((state for state in _WORST if state in states), "missing")
    if "improved" in states and worst not in ("alarm", "open", "suspect"):
        worst = "improved"
    past = [point for point in points.past(case)[0] if point.night <= str(result["night"])]
    cells = {name: cell(case, past, one) for name, one in judged.items() if name in SERIES and one["value"] is not None}
    runs = judged.get(incidents.RUNS, {})
    state = worst if result["state"] == "judged" else "missing"
    return {
        "case": case,
        "says": state if result["state"] == "judged" else "did not run",
        "tone": "NOT_COMPARABLE" if result["quarantined"] else TONES[state],
        "quarantine": _quarantine(result),
        "note": runs.get("says", "") if runs.get("state") not in ("steady", None) else "",
        "runs": len(result.get("runs", [])),
        "gates": ", ".join(dict.fromkeys(filter(None, result.get("verdicts", [])))),
        "class": " · ".join(filter(None, [result.get("hardware"), result.get("environment")])),
        "cells": cells,
    }


def cell(case: str, past: list[Point], one: Mapping[str, Any]) -> dict[str, Any]:
    """Return one series of a case as the page shows it."""
    name = str(one["series"])
    like = next(point for point in reversed(past) if name in point.values)
    spans = incidents.bad_nights(case, name)
    dots = [
        Dot(night, night_value([point.values[name] for point in some]), incidents.is_bad(night, spans))
        for night, some in ((key, list(group)) for key, group in groupby(comparable(past, like, name), _night))
    ]
    level, value = one["before"], float(one["value"])
    moved = f"{(value - level) / abs(level):+.1%}" if level else ""
    return {
        "picture": sparkline(dots, SERIES[name], level),
        "value": words.number(value),
        "moved": moved,
        "state": str(one["state"]),
        "tone": TONES[str(one["state"])],
        "says": str(one["says"]),
        "nature": "" if one["nature"] in ("measured", "real") else str(one["nature"]),
        "moves": len(baseline.moves(case, name)),
        "nights": len(dots),
    }


def incident(found: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return an open incident: what, how much, since when, what changed, and what a person types."""
    name, changed = incidents.name(found), found.get("changed") or {}
    acked = found.get("acked")
    commands = [] if acked else [("I have seen it; be quiet", f'scaleup ack {name} --because "..."')]
    if found["series"] in SERIES:
        commands.append(("This level is right from now on", f'scaleup nightly accept {name} --because "..."'))
    return {
        "name": name,
        "says": words.sentence(str(found["says"])),
        "nights": f"{len(found['nights'])} night{'s' if len(found['nights']) != 1 else ''}, opened {found['opened']}",
        "owner": str(results[found["case"]]["owner"]),
        "good": found.get("last_good", ""),
        "bad": found.get("first_bad", ""),
        "changed": [(kind, lines) for kind, lines in changed.items() if lines],
        "same": [kind for kind, lines in changed.items() if not lines],
        "acked": f"{acked['by']}: {acked['because']}" if acked else "",
        "quarantined": bool(results[found["case"]]["quarantined"]),
        "commands": commands,
    }


def _night(point: Point) -> str:
    return point.night


def _quarantine(result: Mapping[str, Any]) -> str:
    kept = result.get("quarantine")
    if not kept:
        return ""
    if date.fromisoformat(str(result["night"])) > date.fromisoformat(kept["until"]):
        return f"its quarantine expired on {kept['until']} ({kept['owner']}: {kept['reason']})"
    return f"in quarantine until {kept['until']} ({kept['owner']}: {kept['reason']}); its alarms do not count"


def _ship(night: str) -> None:
    """Keep the page as an artifact of MLflow; where the server is away, the next conclusion of the night does it."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        return
    from tasks.tracking import server_at

    try:
        server = server_at(uri)
        experiment, key = server.experiment(REPORTS), {"scaleup.night": night}
        record = read_json(NightDir(night).conclusion) or {}
        when = int(1000 * float(record.get("time", 0.0)))
        run = server.find_run(experiment, key) or server.create_run(experiment, f"night {night}", key, when)
        server.store(run, tags={"mlflow.note.content": str(record.get("sentence", ""))[:5000]})
        server.store_file(run, NightDir(night).report)
        server.set_status(run, "FAILED" if record.get("red") else "FINISHED", when)
    except Exception as error:  # tracking may delay, but must not fail a night
        print(f"the page of night {night} did not reach MLflow: {type(error).__name__}: {str(error)[:200]}")
