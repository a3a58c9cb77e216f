"""Numbers in a person's words: per cent where a share is meant, dollars, GPU-hours, moments."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.gates.core import Check
    from tasks.report.number_lines import Claim

SIGNS = {"PASS": "✓", "FAIL": "✗", "NEED_MORE_DATA": "?", "INVALID": "!", "NOT_COMPARABLE": "≠"}
SAYS = {
    "PASS": "passed",
    "FAIL": "failed",
    "NEED_MORE_DATA": "could not be decided yet",
    "INVALID": "could not be judged",
    "NOT_COMPARABLE": "was not compared",
}
EXPLAINED = {
    "NEED_MORE_DATA": "Nothing speaks against it. There is too little data to say yes.",
    "INVALID": "The evidence is not sound, so it shows nothing. That is not a pass.",
    "NOT_COMPARABLE": "A declared change makes a comparison meaningless. Nothing is shown, nothing held against it.",
}
QUANTITIES = {
    "throughput": "tokens/s/GPU",
    "held_out_loss": "Held-out loss",
    "wall_seconds": "Wall time",
    "gpu_hours": "GPU-hours",
    "cost": "Cost",
    "failures": "Failures",
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


def sentence(said: str) -> str:
    """Return words as a sentence: a capital first, a full stop last; a command stays as it is typed."""
    if not said or said.startswith(("scaleup ", "`")):
        return said
    first = said.split(maxsplit=1)[0]
    begin = said if "_" in first else said[0].upper() + said[1:]  # a stage or a field is written as it is
    return begin + ("" if said.endswith((".", "!", "?", ":")) else ".")


def gpu_hours(value: float, price: float | None) -> str:
    """Return GPU-hours with their price, where one is known."""
    return hours(value) + (f" ({money(value * price)})" if price else "")


def quantity(name: str, value: float | None) -> str:
    """Return a forecast quantity in the unit in which a person thinks of it."""
    if value is None or not math.isfinite(value):
        return "unknown"
    if name == "wall_seconds":
        return f"{value / 3600:,.1f} h" if value >= 3600 else f"{value / 60:,.1f} min"
    if name == "cost":
        return money(value)
    return f"{value:.4f}" if name == "held_out_loss" else number(value)


def distance(estimate: float | None, limit: float | None, unit: str, size: bool = False) -> str:
    """Say how far an estimate is from its limit, nothing where either is unknown; ``size``: it is on both sides."""
    if estimate is None or limit is None:
        return ""
    apart = abs((abs(estimate) if size else estimate) - limit)
    bound = f"±{number(limit, unit)}" if size else number(limit, unit)
    if unit.startswith("of "):
        return f"{number(estimate, unit)} against a limit of {bound}: {100 * apart:.1f} points off"
    return f"{number(estimate)} {unit} against a limit of {bound}: {number(apart)} off"


def sureness(check: Check, claim: Claim, confidence: Any) -> str:
    """Say how sure a check is: whether its interval lies wholly on one side of the limit, and from how many records."""
    n = f"; n = {check.n:,}" if check.n else ""
    if check.interval is None:
        return f"A single number, without an interval{n}." if check.n else ""
    low, high = check.interval
    level = f"{confidence:.0%} interval" if isinstance(confidence, float) else "interval"
    said = f"the {level} is {number(low, check.unit)} to {number(high, check.unit)}"
    if not claim.marks or low == high:
        return f"{said[0].upper()}{said[1:]}{n}."
    if any(low < at < high for at in claim.marks):
        return f"Not sure: {said}, and the limit lies inside it{n}."
    first, last = claim.marks[0], claim.marks[-1]
    if claim.size:
        good: bool | None = first <= low and high <= last
    else:
        good = {"above": low >= first, "below": high <= first}.get(claim.good or "")
    side = "one side" if good is None else "the good side" if good else "the bad side"
    return f"Sure: {said}, wholly on {side} of the limit{n}."
