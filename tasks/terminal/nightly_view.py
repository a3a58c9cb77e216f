"""The newest night in a terminal: a line a case and series that says something, and what is open."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tasks.nightly import incidents
from tasks.nightly.judge import SERIES
from tasks.nightly.night import NightDir
from tasks.report import words
from tasks.stage_dir import read_json

_INKS = {"alarm": "bold red", "open": "red", "suspect": "magenta", "improved": "green", "recovered": "green"}


def show(night: str) -> Group:
    """Return a night as tables: verdicts, then open incidents with the command that quiets or accepts each."""
    folder = NightDir(night)
    record = read_json(folder.conclusion)
    table = Table(title=f"night {night}" + ("" if record else ", under way"), title_justify="left")
    for name in ("case", "series", "state", "value", "", "says"):
        table.add_column(name, overflow="fold")
    for case, result in folder.results().items():
        for one in result["judgements"]:
            if one["state"] != "missing":
                table.add_row(case, *_row(one))
    parts: list[Any] = [table]
    for found in incidents.all_open():
        name, acked = incidents.name(found), found.get("acked")
        quiet = f"acknowledged by {acked['by']}: {acked['because']}" if acked else f'scaleup ack {name} --because "..."'
        count = len(found["nights"])
        since = f"open since {found['opened']}, {count} night{'s' if count != 1 else ''}"
        parts.append(Text(f"{since}: {name} {found['says']}; {quiet}"))
    if record:
        parts += [Text(line) for line in record["notices"]]
        parts += [Text(f"{name} waits for another night: {why}") for name, why in record["left_out"].items()]
        parts.append(Text(("RED: " if record["red"] else "GREEN: ") + record["sentence"]))
        parts.append(Text(str(folder.report)))
    return Group(*parts)


def _row(one: dict[str, Any]) -> list[Any]:
    series, value, level = one["series"], one["value"], one["before"]
    unit = SERIES[series].unit if series in SERIES else ""
    moved = f"{(value - level) / abs(level):+.1%}" if value is not None and level else ""
    shown = f"{words.number(value)} {unit}" if value is not None else ""
    return [series, Text(one["state"], style=_INKS.get(one["state"], "")), shown, moved, Text(one["says"])]
