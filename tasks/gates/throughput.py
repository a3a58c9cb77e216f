"""Gates on speed: measured steadily, scaling as asked, and likely to go on scaling."""

from __future__ import annotations

from tasks.gates.core import Check, Evidence, Unusable, gate


@gate(when="end", needs=("step_seconds",))
def steady_throughput(
    evidence: Evidence, *, half_width: float = 0.02, stall: float = 1.03, launch_sd: float = 0.005
) -> Check:
    """The stage's throughput is known to within a few per cent."""
    raise Unusable("not built yet")


@gate(when="end", needs=("step_seconds",))
def scaling_efficiency(
    evidence: Evidence, *, reference: str, at_least: float = 0.90, launch_sd: float = 0.005, confidence: float = 0.95
) -> Check:
    """A GPU of this stage does at least the asked part of the work of a GPU of the reference stage."""
    raise Unusable("not built yet")


@gate(when="entry", needs=("step_seconds",))
def forecast_efficiency(
    evidence: Evidence,
    *,
    reference: str,
    at_least: float = 0.90,
    pass_at: float = 0.95,
    fail_at: float = 0.05,
    superlinear: float = 1.05,
    present_at_least: float = 0.95,
) -> Check:
    """This stage will, in all likelihood, reach the asked part of the reference stage's throughput a GPU."""
    raise Unusable("not built yet")


@gate(when="early", needs=("step_seconds",))
def canary(
    evidence: Evidence,
    *,
    at_least: float = 0.95,
    lower_at_least: float = 0.92,
    launch_sd: float = 0.005,
    confidence: float = 0.95,
) -> Check:
    """The first steps at full size run as fast as was forecast."""
    raise Unusable("not built yet")
