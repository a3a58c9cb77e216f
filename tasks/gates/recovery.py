"""Gates on recovery: what was handed over is what goes on."""

from __future__ import annotations

import numpy as np

from tasks import statistics
from tasks.gates import frames, next_measurement
from tasks.gates.core import Check, Evidence, Outcome, Unusable, gate
from tasks.gates.thresholds import Confidence, Part, Positive


@gate(when="early", needs=("held_out",), ordered=(("within", "fail_beyond"),))
def resume_parity(evidence: Evidence, *, within: Positive = 0.001, fail_beyond: Positive = 0.005) -> Check:
    """The handed-over weights have the same held-out loss in the new layout as before."""
    before = frames.earlier(evidence, evidence.previous, "stage to go on from")
    now, step, _ = frames.held_out_loss(evidence, evidence.stage.name, at="start")
    then, _, _ = frames.held_out_loss(before, before.facts.name, step=step)
    moved = now - then
    size = abs(moved)
    outcome = Outcome.PASS if size <= within else Outcome.FAIL if size > fail_beyond else Outcome.NEED_MORE_DATA
    return Check(
        "resume_parity",
        outcome,
        f"the held-out loss at step {step} is {now:.5f} after the hand-over and was {then:.5f} before: "
        f"{moved:+.5f} nats; at most ±{within:g} is asked",
        estimate=moved,
        interval=(moved, moved),
        limit=within,
        unit="nats",
        n=1,
        window=f"held-out set at step {step}",
        against=f"{before.facts.name} at step {step}",
        method="same weights on the same fixed set: the difference has no sampling noise; limit on its size",
        next_step=""
        if outcome is Outcome.PASS
        else "compare weights, data type and tokeniser of the two layouts: the resharded model is not the same",
        measurement=next_measurement.person(
            "somebody compares both checkpoints on more held-out text: no further training would tell", gpus=0
        )
        if outcome is Outcome.NEED_MORE_DATA
        else None,
    )


@gate(when="early", needs=("replay",))
def replay_parity(
    evidence: Evidence, *, eps: Positive = 0.01, noise_left: Part = 0.5, confidence: Confidence = 0.95
) -> Check:
    """Replayed steps lose what the same steps of the stage before lost: same samples, same optimizer state."""
    before = frames.earlier(evidence, evidence.previous, "stage to replay")
    again = frames.steps(evidence, evidence.stage.name, ("replay",))
    first = frames.steps(before, before.facts.name, ("train", "canary"))
    step, here, there = np.intersect1d(again["step"], first["step"], return_indices=True)
    if step.size < max(len(again), statistics.SMALLEST_WINDOW):
        raise Unusable(
            f"{step.size} of {len(again)} replayed steps pair with steps of {before.facts.name}; all must, and "
            f"{statistics.SMALLEST_WINDOW} are the least"
        )
    a = frames.numbers(again, "loss", f"replayed steps of {evidence.stage.name}")[here]
    b = frames.numbers(first, "loss", f"steps of {before.facts.name}")[there]
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        raise Unusable("a loss that never changes cannot show that the samples were the same")
    apart = statistics.paired_difference(a, b, confidence=confidence)
    left = statistics.noise_left(a, b)
    return _replay_check(apart, left, eps, noise_left, before.facts.name, step)


def _replay_check(
    apart: statistics.Mean, left: float, eps: float, noise_left: float, before: str, step: statistics.Array
) -> Check:
    inside = -eps <= apart.low and apart.high <= eps
    outside = apart.low > eps or apart.high < -eps
    same = left <= noise_left
    outcome = Outcome.FAIL if outside or not same else Outcome.PASS if inside else Outcome.NEED_MORE_DATA
    said = (
        f"over {step.size} replayed steps the loss differs by {apart.value:+.5f} nats ({apart.low:+.5f} to "
        f"{apart.high:+.5f}) from {before}'s; at most ±{eps:g} is asked; pairing leaves {left:.0%} of the noise, "
        f"at most {noise_left:.0%} is asked"
    )
    todo = ""
    if not same:
        said += ": these were not the same samples"
        todo = "compare the data cursor and the sample order of the two stages at the hand-over"
    elif outcome is not Outcome.PASS:
        todo = "compare optimizer state, learning rate and precision of the two stages at the hand-over"
    return Check(
        "replay_parity",
        outcome,
        said,
        estimate=apart.value,
        interval=(apart.low, apart.high),
        limit=eps,
        unit="nats",
        n=apart.n,
        window=f"steps {int(step[0])}..{int(step[-1])}, phase replay",
        against=f"{before}, the same steps",
        method=f"paired differences, batch means ({apart.batches}), t interval; limit on their size",
        next_step=todo,
        measurement=next_measurement.person(
            "somebody compares the two stages at the hand-over: the steps that both took are all paired already"
        )
        if outcome is Outcome.NEED_MORE_DATA
        else None,
    )
