"""What kind of number a check speaks of: on emulated GPUs a speed is modelled, whatever its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MODELLED = ("tokens/s/GPU", "tokens_per_gpu_second", "GPU-hours", "step_seconds", "median step", "memory")


def is_modelled(unit: str, emulated: bool | None) -> bool:
    """Whether a number in this unit comes from a cluster file and a formula, no GPU having run."""
    return bool(emulated) and any(word in unit for word in _MODELLED)


def mark(check: Mapping[str, Any], emulated: bool | None) -> str:
    """Return what a reader must know of a check's answer, to be set behind it: `` (modelled, shadow)``, or nothing."""
    marks = ["modelled"] if is_modelled(str(check.get("unit", "")), emulated) else []
    marks += ["shadow"] if check.get("shadow") else []
    return f" ({', '.join(marks)})" if marks else ""


def speaks_against(check: Mapping[str, Any]) -> bool:
    """Whether a recorded check stands in a stage's way; a shadow does not, nor what was not to be compared."""
    return not check.get("shadow") and check["outcome"] not in ("PASS", "NOT_COMPARABLE")
