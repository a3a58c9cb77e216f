"""The forecast of a stage in words, and after the stage against what came."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.report import words
from tasks.report.number_lines import Foretold, score_picture
from tasks.report.story import Story


def forecast_rows(story: Story) -> list[tuple[str, str, str]]:
    """Return (what, median and range, how it was made) of everything that was registered before the stage started."""
    said = story.forecast
    found = []
    for key, name in words.QUANTITIES.items():
        part = said.get(key)
        if isinstance(part, Mapping) and ("median" in part or part.get("says")):
            found.append((name, _span(key, part), _says(key, part, said)))
    failures = said.get("uninterrupted")
    if isinstance(failures, Mapping):
        found.append(("Failures", _failures(failures), str(failures.get("says", ""))))
    wrong = said.get("wrong")
    if isinstance(wrong, Mapping):
        chance = wrong.get("p_right")
        span = f"it holds with {chance:.1%}" if isinstance(chance, int | float) else ""
        found.append(("If it is wrong", span, str(wrong.get("says", ""))))
    return found


def _span(key: str, part: Mapping[str, Any]) -> str:
    """Return ``8,354 (7,366 to 8,977)``; of what is unknown the most there can be, or nothing."""
    values = [part.get(name) for name in ("median", "low", "high")]
    if values[0] is None:
        most = part.get("at_most")
        return f"at most {words.quantity(key, most)}" if isinstance(most, int | float) else ""
    median, low, high = (words.quantity(key, v if isinstance(v, int | float) else None) for v in values)
    return f"{median} ({low} to {high})" if "unknown" not in (low, high) else median


def _says(key: str, part: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    own = str(part.get("says", ""))
    if key == "wall_seconds" and not own:
        own = str((said.get("spending") or {}).get("says", ""))
    return own or ("unknown" if part.get("median") is None and part.get("at_most") is None else "")


def _failures(said: Mapping[str, Any]) -> str:
    expected, none = said.get("expected"), said.get("probability")
    if not isinstance(none, int | float):
        return ""
    count = expected if isinstance(expected, int | float) else -math.log(none) if 0 < none <= 1 else None
    return f"{words.number(count)} expected; none at all with {none:.1%}"


def score_rows(story: Story) -> list[dict[str, str]]:
    """Return forecast against outcome, a row a quantity, in words."""
    rows = []
    for row in _quantities(story):
        key = str(row.get("quantity"))
        inside = row.get("inside")
        median, low, high = (words.quantity(key, row.get(name)) for name in ("median", "low", "high"))
        rows.append(
            {
                "stage": story.stage.name,
                "name": words.QUANTITIES.get(key, key),
                "forecast": f"{median} ({low} to {high})" if row.get("median") is not None else "none",
                "outcome": words.quantity(key, row.get("outcome")) if row.get("outcome") is not None else "",
                "error": _error(row),
                "inside": "" if inside is None else "inside" if inside else "outside",
                "tone": "" if inside is None else "PASS" if inside else "FAIL",
                "quantile": _quantile(row.get("quantile")),
                "nature": str(row.get("nature") or ""),
                "says": str(row.get("says") or ""),
            }
        )
    return rows


def score_chart(stories: Sequence[Story]) -> Any:
    """Return what was foretold of each stage and what came, each quantity on its own scale."""
    several = len(stories) > 1
    found = []
    for story in stories:
        for row in _quantities(story):
            key = str(row.get("quantity"))
            if key in ("gpu_hours", "cost"):  # the same thing as wall time, in other units
                continue
            low, median, high, outcome = (row.get(name) for name in ("low", "median", "high", "outcome"))
            if not all(isinstance(v, int | float) for v in (low, median, high, outcome)):
                continue
            name = f"{story.stage.name} " * several + words.QUANTITIES.get(key, key)
            said = f"{words.quantity(key, outcome)} ({_error(row)})"
            found.append(Foretold(name, float(low), float(median), float(high), float(outcome), said))  # type: ignore[arg-type]
    return score_picture(found)


def _quantities(story: Story) -> list[Mapping[str, Any]]:
    return [row for row in story.score.get("quantities") or [] if isinstance(row, Mapping)]


def _error(row: Mapping[str, Any]) -> str:
    error = row.get("error")
    return f"{error:+.1%}" if isinstance(error, int | float) else ""


def _quantile(value: Any) -> str:
    """Say where in the forecast the outcome fell, as a share of what was thought possible that lies below it."""
    if not isinstance(value, int | float):
        return ""
    return "below all but 1%" if value <= 0.01 else "above all but 1%" if value >= 0.99 else f"above {value:.0%} of it"
