"""Gates on stability: nothing that is not a number, no step lost, no spikes, and no sign of a divergence to come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tasks import statistics
from tasks.gates import frames
from tasks.gates.core import Check, Evidence, Outcome, Unusable, gate
from tasks.gates.thresholds import Excess, NotNegative, Part, Positive, Probability

if TYPE_CHECKING:
    import pandas as pd


@gate(when="end", also=("early",), needs=("loss",))
def finite_loss(evidence: Evidence) -> Check:
    """Every step of the stage was recorded and its loss is a finite number."""
    import pandas as pd

    name = evidence.stage.name
    if not {"step", "loss"} <= set(evidence.steps.columns) or not len(evidence.steps):
        raise Unusable(f"{name} has no step records with a loss")
    step = frames.numbers(evidence.steps, "step", f"records of {name}").astype(int)
    loss = pd.to_numeric(evidence.steps["loss"], errors="coerce").to_numpy(dtype=float)
    bad = ~(np.isfinite(loss) & (np.abs(loss) <= frames.LARGEST))
    seen = np.unique(step)
    first, last = int(seen[0]), int(seen[-1])
    if bad.any():
        outcome = Outcome.FAIL
        said = (
            f"the loss is not a finite number in {int(bad.sum())} of {bad.size} records, first at step {step[bad][0]}"
        )
        todo = "go back to the last checkpoint before that step; look at grad_norm and learning_rate just before it"
    else:
        frames.refuse_gaps(evidence, seen)
        frames.numbers(evidence.steps, "loss", f"records of {name}")
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


@dataclass(frozen=True)
class _Sign:
    """One sign of trouble: what was found, how much of it is let pass."""

    found: float
    allowed: float
    unit: str
    said: str
    todo: str
    at_most: bool = True

    @property
    def good(self) -> bool:
        """Whether it is within what is let pass."""
        return self.found <= self.allowed if self.at_most else self.found >= self.allowed


@gate(when="end", needs=("loss", "grad_norm"))
def stable_loss(
    evidence: Evidence,
    *,
    spikes_per_1000: NotNegative = 1.0,
    spike_z: Positive = 6.0,
    grad_norm_growth: Excess = 2.0,
    grad_norm_alpha: Probability = 0.01,
    skipped_at_most: Part = 0.01,
    loss_scale_at_least: Positive = 1.0,
) -> Check:
    """The loss did not spike, the gradient norm does not climb, and no update was lost to overflow beyond the usual."""
    name = evidence.stage.name
    frame = frames.steps(evidence, name, ("canary", "train"))
    what = f"steps of {name}"
    loss = frames.numbers(frame, "loss", what)
    norm = frames.numbers(frames.moved(frame), "grad_norm", what)
    if loss.size < statistics.SMALLEST_WINDOW:
        raise Unusable(f"{loss.size} {what} are too few; {statistics.SMALLEST_WINDOW} are the least")
    frames.refuse_gaps(evidence, np.unique(frame["step"].to_numpy(dtype=int)))
    if np.ptp(loss) == 0 or np.ptp(norm) == 0:
        raise Unusable("a loss or a gradient norm that never changes was not measured")
    signs = [
        _spikes(frame, loss, spikes_per_1000, spike_z),
        _climb(norm, grad_norm_growth, grad_norm_alpha),
        *_overflow(frame, what, skipped_at_most, loss_scale_at_least),
    ]
    worst = next((sign for sign in signs if not sign.good), signs[0])
    return Check(
        "stable_loss",
        Outcome.PASS if worst.good else Outcome.FAIL,
        "; ".join(sign.said for sign in signs),
        estimate=worst.found,
        limit=worst.allowed,
        unit=worst.unit,
        n=int(loss.size),
        window=frames.window(frame, "canary and train"),
        method="spikes: median and MAD of 128 steps before; climb: Kendall's tau, Theil-Sen over the last half",
        next_step="" if worst.good else worst.todo,
    )


def _spikes(frame: pd.DataFrame, loss: statistics.Array, per_1000: float, z: float) -> _Sign:
    """Count spikes; one alone is let pass in a stage of any length, as it is in 1,000 steps (GATES 2.6, G5)."""
    marked = statistics.spikes(loss, threshold=z)
    allowed = float(max(1.0, np.floor(per_1000 * loss.size / 1000.0))) if per_1000 > 0 else 0.0
    count = int(marked.sum())
    where = f", first at step {int(frame['step'].to_numpy()[marked][0])}" if count else ""
    return _Sign(
        count,
        allowed,
        "spikes",
        f"{count} spikes of the loss in {loss.size} steps{where}; at most {allowed:g} are let pass",
        "look at the batches at the spikes; skip them or lower the learning rate, and go on from before the first",
    )


def _climb(norm: statistics.Array, growth: float, alpha: float) -> _Sign:
    """Judge the last half's gradient norms, which lead the loss: do they climb, and by how much (GATES 2.6)."""
    from scipy.stats import kendalltau, theilslopes

    half = norm[norm.size // 2 :]
    length = max(1, half.size // 10)
    batches = half.size // length
    medians = np.median(half[half.size - batches * length :].reshape(batches, length), axis=1)
    if (medians <= 0).any():
        raise Unusable("grad_norm is not positive; it is the length of a vector that moves the weights")
    chance = float(kendalltau(np.arange(batches), medians, alternative="greater").pvalue)
    times = float(np.exp(theilslopes(np.log(medians), np.arange(batches))[0] * (batches - 1)))
    found = times if chance < alpha else min(times, 1.0)
    return _Sign(
        found,
        growth,
        "times the gradient norm at mid-stage",
        f"the gradient norm went to {times:.2f} times in the last half (chance {chance:.2g} without a trend); "
        f"at most {growth:g} times is let pass",
        "lower the learning rate or the clip before the loss follows; compare with the stage before at the same tokens",
    )


def _overflow(frame: pd.DataFrame, what: str, skipped_at_most: float, scale_at_least: float) -> Iterator[_Sign]:
    """Judge skipped updates and the loss scale where a trainer records them; columns that are not there are fine."""
    if "skipped_steps" in frame.columns and frame["skipped_steps"].notna().any():
        skipped = frames.numbers(frame, "skipped_steps", what)
        if (skipped < 0).any():
            raise Unusable("skipped_steps is negative")
        allowed = max(1.0, float(np.floor(skipped_at_most * skipped.size)))
        said = f"{skipped.sum():g} updates skipped; at most {allowed:g} are let pass"
        todo = "find what overflows: the loss scale, an activation, the learning rate"
        yield _Sign(float(skipped.sum()), allowed, "skipped updates", said, todo)
    if "loss_scale" in frame.columns and frame["loss_scale"].notna().any():
        scale = float(frames.numbers(frame, "loss_scale", what)[-10:].min())
        said = f"the loss scale ended at {scale:g}; at least {scale_at_least:g} is asked"
        todo = "gradients overflow however small the scale: use bf16, or lower the learning rate"
        yield _Sign(scale, scale_at_least, "loss scale", said, todo, at_most=False)
