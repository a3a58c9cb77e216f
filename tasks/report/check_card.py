"""One check as a card: what it found, by how much, how surely, what it costs to know more, what to do."""

from __future__ import annotations

from typing import Any

from tasks import natures
from tasks.gates.core import Check
from tasks.report import words
from tasks.report.number_lines import Claim, Side, check_picture
from tasks.report.story import claim_of

_ABOVE = ("at_least", "pass_at", "half_width", "lower_at_least")  # thresholds that say: more is better
_BELOW = ("eps", "within", "most", "at_most", "stall", "spikes", "above", "growth")


def check_row(check: Check, *, emulated: bool | None = None, price: float | None = None) -> dict[str, Any]:
    """Return one check as the templates print it; ``price`` is what a GPU-hour costs in US dollars."""
    confidence = check.thresholds.get("confidence")
    claim = claim_on(check)
    open_or_bad = check.outcome not in ("PASS", "NOT_COMPARABLE")
    return {
        "gate": check.gate,
        "outcome": str(check.outcome),
        "sign": words.SIGNS[check.outcome],
        "says": words.SAYS[check.outcome],
        "shadow": check.shadow,
        "modelled": natures.is_modelled(check.unit, emulated),
        "claim": claim_of(check),
        "reason": words.sentence(check.reason),
        "explained": words.EXPLAINED.get(check.outcome, ""),
        "distance": words.distance(check.estimate, check.limit, check.unit, claim.size) if open_or_bad else "",
        "sureness": words.sureness(check, claim, confidence),
        "measurement": measurement(check, price) if open_or_bad else "",
        "next_step": words.sentence(check.next_step) if check.outcome != "PASS" else "",
        "picture": check_picture(
            check.outcome, check.estimate, check.interval, claim, lambda v: words.number(v, check.unit)
        ),
        "unit": check.unit,
        "inputs": "; ".join(f"{name.replace('_', ' ')}: {source}" for name, source in check.inputs.items()),
        "small": " · ".join(x for x in (check.window, check.against, check.method) if x),
        "thresholds": ", ".join(f"{name} {value}" for name, value in check.thresholds.items() if value is not None),
    }


def claim_on(check: Check) -> Claim:
    """Return the limit with its good side: told by the outcome, and where that says nothing, by the thresholds."""
    if "limit on" in check.method and "size" in check.method:
        return Claim(check.limit, size=True)
    good: Side | None = None
    if check.estimate is not None and check.limit is not None and check.estimate != check.limit:
        over: Side = "above" if check.estimate > check.limit else "below"
        under: Side = "below" if over == "above" else "above"
        good = {"PASS": over, "FAIL": under}.get(str(check.outcome))
    if check.outcome not in ("PASS", "FAIL"):
        good = next((side for side, names in _SIDES if any(name in check.thresholds for name in names)), None)
    return Claim(check.limit, good)


_SIDES: tuple[tuple[Side, tuple[str, ...]], ...] = (("above", _ABOVE), ("below", _BELOW))


def measurement(check: Check, price: float | None) -> str:
    """Say what would decide an undecided check, what that costs, and beside it what a wrong decision costs."""
    found = check.measurement
    if found is None:
        return ""
    said = found.says or f"{found.steps} steps on {found.gpus} GPUs would decide"
    if found.gpu_hours > 0:
        said += f". It costs {words.gpu_hours(found.gpu_hours, price)}"
    if found.wrong_gpu_hours is not None:
        said += f". To be wrong costs {words.gpu_hours(found.wrong_gpu_hours, price)}"
    return words.sentence(said)
