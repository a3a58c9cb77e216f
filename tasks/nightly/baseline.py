"""From which night a series counts. It moves by a person's word, or by the ratchet: an improvement that held.

``nightly/baselines/<case>.json`` holds by series the night, the level before and after, who moved it and why, and all
moves before that.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tasks.errors import ScaleupError
from tasks.nightly import incidents, points
from tasks.nightly.judge import SERIES
from tasks.run import user
from tasks.stage_dir import read_json, write_json

RATCHET = "ratchet"
SMALLEST_PART = 3.0  # a move by less than a third of what counts would follow the noise (GATES N1)


def from_night(case: str, series: str) -> str:
    """Return the first night of the present baseline, empty where the whole past is it."""
    return str((_read(case).get(series) or {}).get("from_night", ""))


def moves(case: str, series: str) -> list[dict[str, Any]]:
    """Return every move of a series' baseline, oldest first."""
    return list((_read(case).get(series) or {}).get("moves", []))


def ratchet(case: str, series: str, night: str, before: float, after: float) -> None:
    """Move the baseline to a confirmed improvement, so that falling back from it is a regression."""
    because = "an improvement that held for ten nights; falling back from it counts"
    _move(case, series, night, before, after, by=RATCHET, because=because)


def accept(said: str, because: str, by: str | None = None) -> str:
    """Accept the level of an open incident (``CASE/SERIES``) as the new baseline; return what was done.

    Raises ScaleupError where nothing is open, where it is no level, or where the move is smaller than a third of what
    counts.
    """
    if not because.strip():
        raise ScaleupError("--because must say why the new level is right; the report quotes it")
    case, series = incidents.named(said)
    found = incidents.open_of(case, series)
    if found is None:
        raise ScaleupError(f"{said} has no open incident, so there is no new level to accept; {incidents.say_open()}")
    if series not in SERIES:
        raise ScaleupError(f"{said} says that the case does not run; that is mended, not accepted")
    before, after = float(found["before"]), float(found["after"])
    least = SERIES[series].least_change / SMALLEST_PART
    if before and abs(after / before - 1) < least:
        raise ScaleupError(
            f"{said} moved by {after / before - 1:+.2%}, less than {least:.2%}: there is nothing to accept"
        )
    who = by or user()
    _move(case, series, str(found["first_bad"]), before, after, by=who, because=because)
    incidents.close(case, series, how=f"accepted by {who}: {because}", good_from=str(found["first_bad"]))
    now = f"{said}: the baseline is {after:.6g} {SERIES[series].unit} from {found['first_bad']} on"
    return f"{now}; it was {before:.6g}" + (f" ({after / before - 1:+.2%})" if before else "")


def _move(case: str, series: str, night: str, before: float, after: float, *, by: str, because: str) -> None:
    known = moves(case, series)
    if known and known[-1]["from_night"] == night and known[-1]["by"] == by:
        return  # a conclusion that was cut short and made anew
    move = {
        "from_night": night, "before": before, "after": after, "difference": after - before, "by": by,
        "because": because, "time": time.time(),
    }  # fmt: skip
    write_json(_path(case), {**_read(case), series: {"from_night": night, "moves": [*known, move]}})


def _read(case: str) -> dict[str, Any]:
    return read_json(_path(case)) or {}


def _path(case: str) -> Path:
    return points.folder() / "baselines" / f"{case}.json"
