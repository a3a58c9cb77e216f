"""By how much a stage's loss exceeds that of stored reference runs, paired where they saw the same samples.

A stored curve has ``fingerprint`` of the data, ``batch_tokens``, and ``runs``: each with rising ``tokens`` and the
``held_out_loss`` there. A run may also say its ``seed``, ``step_tokens`` (seen after each step) and ``step_loss``:
where seed and tokens are this stage's, samples were the same, since the order of samples follows from the seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks import statistics
from tasks.gates import frames, next_measurement
from tasks.gates.core import Evidence, Measurement, Undecided, Unusable
from tasks.gates.launches import LEAST_REPEATS

WINDOW = 200  # last steps that are paired, at most
SAME_SAMPLES = 0.5  # noise that pairing may leave; different samples leave all of it


@dataclass(frozen=True)
class Excess:
    """Nats above the reference with standard error and degrees of freedom, and how that was found."""

    nats: float
    se: float
    df: float
    runs: int
    shift: float  # allowed for another batch
    window: str
    how: str
    noise: str


def excess(evidence: Evidence, baseline: Mapping[str, Any], loss: float, step: int, tokens: int) -> Excess:
    """Return the excess over the stored runs: paired where their samples were the same, else at equal tokens."""
    if baseline.get("fingerprint") != evidence.stage.fingerprint:
        raise Unusable(
            f"the reference curve is of data {str(baseline.get('fingerprint'))[:12]!r}, "
            f"this stage trained on {evidence.stage.fingerprint[:12]!r}"
        )
    return _paired(evidence, baseline["runs"]) or _unpaired(evidence, baseline, loss, step, tokens)


def reaches(baseline: Mapping[str, Any], evidence: Evidence, tokens: int) -> bool:
    """Whether any stored run goes as far; of runs of smaller stages none does, and then the forecast has to serve.

    A curve that is not sound, or of other data, counts as one that reaches: it is refused, not passed over.
    """
    ends = [run.get("tokens") for run in baseline.get("runs") or []]
    sound = baseline.get("fingerprint") == evidence.stage.fingerprint and bool(ends) and tokens > 0
    return not sound or any(not isinstance(end, list) or not end or not end[-1] < 0.99 * tokens for end in ends)


def _paired(evidence: Evidence, runs: Sequence[Mapping[str, Any]]) -> Excess | None:
    """Return the mean paired difference of the last steps; None where no run pairs with all of them."""
    frame = frames.steps(evidence, evidence.stage.name, ("canary", "train")).iloc[-WINDOW:]
    if len(frame) < statistics.SMALLEST_WINDOW:
        return None
    own = frames.numbers(frame, "loss", f"steps of {evidence.stage.name}")
    at = frames.numbers(frame, "tokens", f"steps of {evidence.stage.name}")
    found = [there for run in runs if (there := _same_steps(run, evidence.stage.seed, at)) is not None]
    found = [there for there in found if np.ptp(there) > 0 and statistics.noise_left(own, there) <= SAME_SAMPLES]
    if not found or np.ptp(own) == 0:
        return None
    apart = statistics.paired_difference(own, np.mean(found, axis=0), confidence=0.95)
    sd, df, said = _spread(evidence, None)
    drawn = sd**2 * (1 + 1 / len(found))
    total = apart.se**2 + drawn
    df = total**2 / (apart.se**4 / apart.df + drawn**2 / df) if apart.se > 0 else df
    return Excess(
        apart.value,
        math.sqrt(total),
        df,
        len(found),
        0.0,
        frames.window(frame, "canary and train"),
        f"paired with {len(found)} reference runs on the same samples, {apart.n} steps; batch means",
        said,
    )


def _same_steps(run: Mapping[str, Any], seed: int, tokens: statistics.Array) -> statistics.Array | None:
    """Return a reference run's loss at each of these cumulative tokens, where it took just these steps."""
    if run.get("seed") != seed or "step_tokens" not in run or "step_loss" not in run:
        return None
    at, loss = np.asarray(run["step_tokens"], dtype=float), np.asarray(run["step_loss"], dtype=float)
    if at.shape != loss.shape or not (np.isfinite(at).all() and np.isfinite(loss).all()):
        raise Unusable("a reference run's step_tokens and step_loss must be finite and as many")
    place = np.searchsorted(at, tokens)
    there = (place < at.size) & (at[np.minimum(place, at.size - 1)] == tokens)
    consecutive = np.array_equal(np.diff(place), np.ones(place.size - 1))
    return loss[place] if there.all() and consecutive else None


def _unpaired(evidence: Evidence, baseline: Mapping[str, Any], loss: float, step: int, tokens: int) -> Excess:
    """Return the held-out loss above the runs' mean at equal tokens, less what the batch explains (GATES 2.4, G4)."""
    curves = [_at(run, tokens) for run in baseline["runs"]]
    if not curves:
        raise Unusable("the reference curve holds no run")
    values = np.array([value for value, _ in curves])
    slope = float(np.mean([slope for _, slope in curves]))
    shift, shift_sd = statistics.batch_shift(
        slope, float(baseline["batch_tokens"]), evidence.stage.batch_tokens, statistics.critical_batch(tokens)
    )
    sd, df, said = _spread(evidence, values)
    return Excess(
        loss - float(values.mean()) - shift,
        math.sqrt(sd**2 * (1 + 1 / values.size) + shift_sd**2),
        df,
        int(values.size),
        shift,
        f"held-out set at step {step}, {tokens:,} tokens",
        f"held-out loss at equal tokens against {values.size} reference runs; t on their spread",
        said,
    )


def _spread(evidence: Evidence, values: statistics.Array | None) -> tuple[float, float, str]:
    """Return the run-to-run sd of a loss, its degrees of freedom and where it is from; no less than the floor.

    ``values`` are reference runs whose own spread stands for it; None where pairs show most of it themselves.
    """
    floor, noise = statistics.SIGMA_RUN, evidence.noise
    if noise.loss_sd is not None and noise.repeats >= LEAST_REPEATS:
        source = f" ({noise.source})" if noise.source else ""
        said = f"measured, {noise.repeats} repeats{source}, {noise.loss_sd:.2g} nats"
        return max(noise.loss_sd, floor), noise.repeats - 1, said
    if values is None:
        return floor, math.inf, f"prior, {floor:g} nats"
    if values.size < 2:
        raise Undecided(
            f"the reference has {values.size} run, so its own spread is unknown; `scaleup calibrate` adds more",
            _reruns(evidence),
        )
    said = f"measured, {values.size} reference runs, {float(values.std(ddof=1)):.2g} nats"
    return max(float(values.std(ddof=1)), floor), values.size - 1, said


def _reruns(evidence: Evidence) -> Measurement | None:
    """Return the price of two more runs of this stage, where its step seconds are sound."""
    facts = evidence.stage
    try:
        seconds = frames.seconds(frames.steps(evidence, facts.name), facts, "train steps")
    except Unusable:
        return None
    steps = 2 * (facts.last_step - facts.first_step + 1)
    cost = next_measurement.gpu_hours(facts.gpus, float(seconds.mean()), steps)
    says = "`scaleup calibrate` with two repeats or more of this stage: somebody starts it"
    return next_measurement.person(says, gpus=facts.gpus, steps=steps, cost=cost)


def _at(run: Mapping[str, Any], tokens: int) -> tuple[float, float]:
    """Return a reference run's loss at ``tokens``, linear in ln tokens, and its slope -dL/dlnD there."""
    x, y = np.log(np.asarray(run["tokens"], dtype=float)), np.asarray(run["held_out_loss"], dtype=float)
    if (
        x.size < 2
        or x.shape != y.shape
        or not (np.isfinite(x).all() and np.isfinite(y).all() and (np.diff(x) > 0).all())
    ):
        raise Unusable("a reference curve needs two or more finite points with rising tokens")
    if not tokens > 0:
        raise Unusable("the held-out row does not say after how many tokens it was taken")
    at = math.log(tokens)
    if not x[0] - 0.01 <= at <= x[-1] + 0.01:
        raise Unusable(
            f"the reference curve spans {math.exp(x[0]):,.0f} to {math.exp(x[-1]):,.0f} tokens, not {tokens:,}"
        )
    left = int(np.clip(np.searchsorted(x, at) - 1, 0, x.size - 2))
    return float(np.interp(at, x, y)), float(-(y[left + 1] - y[left]) / (x[left + 1] - x[left]))
