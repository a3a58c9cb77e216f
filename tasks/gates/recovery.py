"""Gates on recovery: what was handed over is what goes on."""

from __future__ import annotations

from tasks.gates.core import Check, Evidence, Unusable, gate


@gate(when="early", needs=("held_out",))
def resume_parity(evidence: Evidence, *, within: float = 0.001, fail_beyond: float = 0.005) -> Check:
    """The handed-over weights have the same held-out loss in the new layout as before."""
    raise Unusable("not built yet")


@gate(when="early", needs=("replay",))
def replay_parity(evidence: Evidence, *, eps: float = 0.01, noise_left: float = 0.5, confidence: float = 0.95) -> Check:
    """Replayed steps lose what the same steps of the stage before lost: same samples, same optimizer state."""
    raise Unusable("not built yet")
