"""One incident a series: opened by an alarm, added to by each night that repeats it, quiet once acknowledged, closed
by recovery or by a person who accepts the new level.

``nightly/incidents/<case>/<series>.json``: the open one, if any, and those before it. The nights of an incident are
bad: they enter no baseline.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.config.errors import unknown
from tasks.errors import ScaleupError
from tasks.nightly import points
from tasks.nightly.judge import SERIES
from tasks.run import user
from tasks.stage_dir import read_json, write_json

RUNS = "runs"  # the series of a case that does not run at all


def open_of(case: str, series: str) -> dict[str, Any] | None:
    """Return the open incident of a series, or None."""
    found = _read(case, series).get("open")
    return dict(found) if found else None


def bad_nights(case: str, series: str) -> list[tuple[str, str]]:
    """Return (first, end) of the nights that enter no baseline; the end, itself good, is empty while one is open."""
    known = _read(case, series)
    closed = [(str(past["first_bad"]), str(past["good_from"])) for past in known.get("past", [])]
    return closed + ([(str(known["open"]["first_bad"]), "")] if known.get("open") else [])


def is_bad(night: str, spans: list[tuple[str, str]]) -> bool:
    """Whether a night lies in an incident."""
    return any(first <= night and (not end or night < end) for first, end in spans)


def opened(case: str, series: str, night: str, facts: Mapping[str, Any]) -> bool:
    """Open an incident; return False where that was done before, by a conclusion that was cut short."""
    known = _read(case, series)
    if known.get("open"):
        return bool(known["open"]["opened"] == night)
    new = {**facts, "case": case, "series": series, "opened": night, "nights": [night], "time": time.time()}
    _write(case, series, {**known, "open": new})
    return True


def repeated(case: str, series: str, night: str) -> None:
    """Add a night to the open incident."""
    known = _read(case, series)
    if known.get("open") and night not in known["open"]["nights"]:
        known["open"]["nights"].append(night)
        _write(case, series, known)


def close(case: str, series: str, *, how: str, good_from: str) -> None:
    """Close the open incident, if there is one; nights from ``good_from`` on are good again."""
    known = _read(case, series)
    if known.get("open"):
        past = {**known["open"], "closed": time.time(), "how": how, "good_from": good_from}
        _write(case, series, {"open": None, "past": [*known.get("past", []), past]})


def acknowledge(said: str, because: str, by: str | None = None) -> str:
    """Quiet an open incident (``CASE/SERIES``) under a person's name; it stays open, and nights are red no more."""
    case, series = named(said)
    known = _read(case, series)
    if not known.get("open"):
        raise ScaleupError(f"{said} has no open incident; {say_open()}")
    who = by or user()
    known["open"]["acked"] = {"by": who, "because": because, "time": time.time()}
    _write(case, series, known)
    return f"{said} is acknowledged by {who}: {because}. It stays open until it recovers or is accepted"


def all_open() -> Iterator[dict[str, Any]]:
    """Yield every open incident, by case and series."""
    for path in sorted((points.folder() / "incidents").glob("*/*.json")):
        found = (read_json(path) or {}).get("open")
        if found:
            yield dict(found)


def all_past() -> Iterator[dict[str, Any]]:
    """Yield every closed incident, by case and series."""
    for path in sorted((points.folder() / "incidents").glob("*/*.json")):
        yield from (read_json(path) or {}).get("past", [])


def say_open() -> str:
    """Name the open incidents."""
    names = [name(found) for found in all_open()]
    return f"open are {', '.join(names)}" if names else "no incident is open"


def name(incident: Mapping[str, Any]) -> str:
    """Return what a person types for an incident."""
    return f"{incident['case']}/{incident['series']}"


def named(said: str) -> tuple[str, str]:
    """Return case and series of ``CASE/SERIES``; raise ScaleupError where there are none of that name."""
    case, slash, series = said.rpartition("/")
    there = points.cases()
    if not slash or case not in there:
        raise ScaleupError(f"{said!r} must be CASE/SERIES; {unknown('case', case or said, there)}")
    if series not in (*SERIES, RUNS):
        raise ScaleupError(f"{said!r}: {unknown('series', series, [*SERIES, RUNS], 'series')}")
    return case, series


def _read(case: str, series: str) -> dict[str, Any]:
    return read_json(_path(case, series)) or {}


def _write(case: str, series: str, value: Mapping[str, Any]) -> None:
    write_json(_path(case, series), value)


def _path(case: str, series: str) -> Path:
    return points.folder() / "incidents" / case / f"{series}.json"
