"""Numbers in a person's words: per cent where a share is meant, dollars, GPU-hours, moments."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

SIGNS = {"PASS": "✓", "FAIL": "✗", "NEED_MORE_DATA": "?", "INVALID": "!"}
SAYS = {
    "PASS": "passed",
    "FAIL": "failed",
    "NEED_MORE_DATA": "could not be decided yet",
    "INVALID": "could not be judged",
}


def number(value: float | None, unit: str = "") -> str:
    """Return a number with as many digits as a person compares; a share (unit ``of ...``) in per cent."""
    if value is None or not math.isfinite(value):
        return "unknown" if value is None else str(value)
    if unit.startswith("of "):
        return f"{value:.1%}"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.4g}" if size >= 1e-4 else f"{value:.1e}"


def short(value: float) -> str:
    """Return an axis label: 1.5M, 20k, 0.25."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{name}"
    return f"{value:.4g}"


def moment(value: Any) -> str:
    """Return a moment (seconds since the epoch, or ISO 8601) in UTC, to the minute."""
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return str(value) if value else "at an unknown time"


def money(value: float) -> str:
    """Return US dollars."""
    return f"${value:,.0f}" if value >= 100 else f"${value:,.2f}"


def hours(value: float) -> str:
    """Return GPU-hours."""
    return f"{value:,.0f} GPU-hours" if value >= 100 else f"{value:.3g} GPU-hours"


def distance(estimate: float | None, limit: float | None, unit: str) -> str:
    """Say how far an estimate is from its limit; nothing where either is unknown."""
    if estimate is None or limit is None:
        return ""
    apart = abs(estimate - limit)
    if unit.startswith("of "):
        return f"{number(estimate, unit)} against a limit of {number(limit, unit)}: {100 * apart:.1f} points off"
    return f"{number(estimate)} {unit} against a limit of {number(limit)}: {number(apart)} off"


def sureness(interval: tuple[float, float] | None, limit: float | None, unit: str, n: int, confidence: Any) -> str:
    """Say how sure an estimate is: its interval, on which side of the limit it lies, and from how many records."""
    if interval is None:
        return f"n = {n:,}, without an interval" if n else ""
    low, high = interval
    level = f"{confidence:.0%} interval" if isinstance(confidence, float) else "interval"
    said = f"{level} {number(low, unit)} to {number(high, unit)}"
    if limit is not None:
        spans = low <= limit <= high
        said += ", which spans the limit: not sure" if spans else ", wholly on one side of the limit: sure"
    return said + (f"; n = {n:,}" if n else "")
