"""A team's past as a table: ``scaleup nightly import FILE.csv`` begins with it, ``export`` gives it back."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import IO

from tasks.errors import TableInvalid
from tasks.nightly import points
from tasks.nightly.judge import SERIES
from tasks.nightly.points import Point

WORDS = ("case", "night", "attempt", "hardware", "environment", "tokens", "commit", "run")
NEEDED = ("case", "night", "hardware", "environment")


def export(out: IO[str], cases: Sequence[str]) -> int:
    """Write a line a measurement of some cases, MLflow's among them; return how many."""
    table = csv.DictWriter(out, [*WORDS, *SERIES], lineterminator="\n")
    table.writeheader()
    found = [point for case in cases for point in points.past(case)[0] if not point.failed]
    for point in found:
        table.writerow({name: getattr(point, name) for name in WORDS} | dict(point.values))
    return len(found)


def import_from(path: Path) -> tuple[int, int]:
    """Keep every line of a table as a point, all of them or none; return how many are new, and how many were there.

    Raises TableInvalid naming the first line that is wrong, or that says otherwise than a point that is there.
    """
    found = list(_points(path))
    new = [point for point in found if not _there(path, point)]
    for point in new:
        points.write(point)
    for case in dict.fromkeys(point.case for point in new):
        points.past(case)  # ships them
    return len(new), len(found) - len(new)


def _points(path: Path) -> Iterator[Point]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TableInvalid(f"{path} cannot be read as CSV: {error}") from error
    head = rows[0] if rows else []
    missing = [name for name in NEEDED if name not in head]
    unknown = [name for name in head if name not in (*WORDS, *SERIES)]
    if missing or unknown or not any(name in head for name in SERIES):
        wrong = (
            f"has no column {missing[0]}"
            if missing
            else f"has an unknown column {unknown[0]!r}"
            if unknown
            else "has no series"
        )
        raise TableInvalid(
            f"{path} line 1 {wrong}; columns are {', '.join(WORDS)}, and one or more of {', '.join(SERIES)}"
        )
    seen: dict[str, int] = {}
    for number, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        where = f"{path} line {number}"
        if len(row) != len(head):
            raise TableInvalid(f"{where} has {len(row)} fields; the first line names {len(head)}")
        point = _point(dict(zip(head, row, strict=True)), where)
        if point.key in seen:
            raise TableInvalid(
                f"{where} measures {point.key} again, as line {seen[point.key]} does; number its attempts"
            )
        seen[point.key] = number
        yield point


def _point(row: Mapping[str, str], where: str) -> Point:
    for name in NEEDED:
        if not row[name].strip():
            raise TableInvalid(f"{where}: {name} is empty; a night is compared with its own class only")
    values = {name: _number(row[name], name, where) for name in SERIES if row.get(name, "").strip()}
    if not values:
        raise TableInvalid(f"{where} has no value of any series")
    case, night = row["case"].strip(), row["night"].strip()
    if not all(part.isalnum() for part in case.replace("-", "_").split("_") if part) or "/" in case:
        raise TableInvalid(f"{where}: case {case!r} may hold letters, digits, - and _ only")
    try:
        date.fromisoformat(night)
    except ValueError as error:
        raise TableInvalid(f"{where}: night {night!r} is no date; write it as 2026-12-31") from error
    return Point(
        case=case, night=night, attempt=_whole(row.get("attempt", ""), "attempt", where),
        hardware=row["hardware"].strip(), environment=row["environment"].strip(), values=values,
        natures=dict.fromkeys(values, "imported"), tokens=_whole(row.get("tokens", ""), "tokens", where),
        commit=row.get("commit", "").strip(), time=time.time(),
    )  # fmt: skip


def _number(said: str, name: str, where: str) -> float:
    try:
        value = float(said)
    except ValueError as error:
        raise TableInvalid(f"{where}: {name} is {said!r}, not a number") from error
    if not math.isfinite(value) or value < 0:
        raise TableInvalid(f"{where}: {name} is {said}; it must be finite and not negative")
    return value


def _whole(said: str, name: str, where: str) -> int:
    if not said.strip():
        return 0
    if not said.strip().isdigit():
        raise TableInvalid(f"{where}: {name} is {said!r}, not a whole number")
    return int(said)


def _there(path: Path, point: Point) -> bool:
    """Whether a point is there already; raise TableInvalid where it says something else."""
    known = points.read(point.case, point.night, point.attempt)
    if known is None:
        return False
    if dict(known.values) != dict(point.values) or (known.hardware, known.environment) != (
        point.hardware,
        point.environment,
    ):
        raise TableInvalid(f"{path}: {point.key} is known with other values; nothing was imported")
    return True
