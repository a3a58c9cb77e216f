"""Gates on stability: nothing that is not a number, no step lost."""

from __future__ import annotations

import numpy as np

from tasks.gates import frames
from tasks.gates.core import Check, Evidence, Outcome, Unusable, gate


@gate(when="end", also=("early",), needs=("loss",))
def finite_loss(evidence: Evidence) -> Check:
    """Every step of the stage was recorded and its loss is a finite number."""
    import pandas as pd

    name = evidence.stage.name
    if not {"step", "loss"} <= set(evidence.steps.columns) or not len(evidence.steps):
        raise Unusable(f"{name} has no step records with a loss")
    step = frames.numbers(evidence.steps, "step", f"records of {name}").astype(int)
    loss = pd.to_numeric(evidence.steps["loss"], errors="coerce").to_numpy(dtype=float)
    bad = ~np.isfinite(loss)
    seen = np.unique(step)
    first, last = int(seen[0]), int(seen[-1])
    if bad.any():
        outcome = Outcome.FAIL
        said = (
            f"the loss is not a finite number in {int(bad.sum())} of {bad.size} records, first at step {step[bad][0]}"
        )
        todo = "go back to the last checkpoint before that step; look at grad_norm and learning_rate just before it"
    else:
        _refuse_gaps(evidence, seen)
        if loss.size > 1 and np.ptp(loss) == 0:
            raise Unusable(f"all {loss.size} losses are exactly {loss[0]:g}; nothing was learnt, or nothing measured")
        outcome, said, todo = Outcome.PASS, f"all {loss.size} losses of steps {first} to {last} are finite", ""
    return Check(
        "finite_loss",
        outcome,
        said,
        estimate=float(bad.sum()),
        limit=0.0,
        unit="losses that are not finite",
        n=int(loss.size),
        window=f"steps {first}..{last}, all phases",
        method="count",
        next_step=todo,
    )


def _refuse_gaps(evidence: Evidence, seen: np.ndarray) -> None:
    """Refuse records with steps missing: a hole may hide what the gate looks for."""
    facts = evidence.stage
    lost = int(seen[-1]) - int(seen[0]) + 1 - seen.size
    if lost:
        raise Unusable(f"{lost} steps between {int(seen[0])} and {int(seen[-1])} of {facts.name} have no record")
    if evidence.moment != "end":
        return
    if seen[0] > max(facts.first_step, 1):
        raise Unusable(f"the records of {facts.name} begin at step {int(seen[0])}, not at {max(facts.first_step, 1)}")
    if facts.last_step and seen[-1] < facts.last_step:
        raise Unusable(f"the records of {facts.name} end at step {int(seen[-1])}; its last is {facts.last_step}")
