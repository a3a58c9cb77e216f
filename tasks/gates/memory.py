"""Gates on memory: the GPUs have room left for what this stage did not happen to meet."""

from __future__ import annotations

import numpy as np

from tasks.gates import frames
from tasks.gates.core import Check, Evidence, Outcome, Unusable, gate
from tasks.gates.thresholds import Part

LEAST = 0.001  # part of a GPU's memory; whoever uses less has written another unit


@gate(when="end", needs=("memory_gib",))
def memory_headroom(evidence: Evidence, *, at_most: Part = 0.95) -> Check:
    """A GPU's peak memory leaves room."""
    facts = evidence.stage
    if facts.memory_gib_per_gpu is None:
        raise Unusable(
            f"how much memory a GPU of {facts.name} has is not known; write memory_gib_per_gpu in its cluster"
        )
    frame = frames.steps(evidence, facts.name, ("replay", "canary", "train"))
    used = frames.numbers(frame, "memory_gib", f"steps of {facts.name}")
    frames.refuse_gaps(evidence, np.unique(frame["step"].to_numpy(dtype=int)))
    if (used <= 0).any():
        raise Unusable(f"memory_gib is not positive in {int((used <= 0).sum())} of {used.size} steps")
    peak = int(used.argmax())
    share = float(used[peak]) / facts.memory_gib_per_gpu
    if share < LEAST:
        raise Unusable(
            f"the peak of {used[peak]:.3g} is {share:.2g} of {facts.memory_gib_per_gpu:g} GiB; is it in GiB?"
        )
    enough = share <= at_most
    kind = "modelled, not measured: " if facts.emulated else ""
    return Check(
        "memory_headroom",
        Outcome.PASS if enough else Outcome.FAIL,
        f"{kind}the peak of {used[peak]:.1f} GiB at step {int(frame['step'].iloc[peak])} is {share:.1%} of the "
        f"{facts.memory_gib_per_gpu:g} GiB of a GPU; at most {at_most:.0%} is asked",
        estimate=share,
        limit=at_most,
        unit="of a GPU's memory",
        n=int(used.size),
        window=frames.window(frame, "replay, canary and train"),
        method="peak of all steps",
        next_step="" if enough else "shard over more GPUs, checkpoint activations, or use smaller micro-batches",
    )
