"""Weak or strong, which stages may be fitted, and what they foretell. Reads records only, never a network's model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks import statistics
from tasks.gates.core import Evidence, StageFacts, Undecided, Unusable
from tasks.gates.launches import Launch, alike, newest, per_gpu


@dataclass(frozen=True)
class Outlook:
    """The predictive of tokens/s/GPU at the target, and how it was made."""

    logarithm: statistics.Predictive  # of tokens/s/GPU, or of seconds a step
    tokens: float | None  # tokens a GPU and step, where the predictive is of seconds
    method: str

    def above(self, throughput: float) -> float:
        """Probability of at least ``throughput``."""
        if self.tokens is None:
            return self.logarithm.above(math.log(throughput))
        return 1.0 - self.logarithm.above(math.log(self.tokens / throughput))

    def quantile(self, p: float) -> float:
        """Throughput below which the share ``p`` lies."""
        if self.tokens is None:
            return math.exp(self.logarithm.quantile(p))
        return self.tokens / math.exp(self.logarithm.quantile(1.0 - p))


def kind(a: StageFacts, b: StageFacts) -> str:
    """Say what the batches make of the step from ``a`` to ``b``: weak scaling, strong scaling, or between."""
    if alike(a, b):
        return "weak scaling"
    if a.throughput_batch_tokens == b.throughput_batch_tokens:
        return "strong scaling"
    batch, gpus = b.throughput_batch_tokens / a.throughput_batch_tokens, b.gpus / a.gpus
    return f"between weak and strong scaling (batch x{batch:.3g}, GPUs x{gpus:.3g})"


def refuse_superlinear(of: Sequence[Launch], limit: float) -> None:
    """Refuse to fit through a GPU that does more among many than among few: the small run was broken (GATES 4.2)."""
    for a, b in itertools.pairwise(sorted(of, key=lambda launch: launch.facts.gpus)):
        gain = b.throughput / a.throughput
        if alike(a.facts, b.facts) and b.facts.gpus > a.facts.gpus and gain > limit:
            raise Unusable(
                f"a GPU did {gain:.3f} times the work in {b.facts.name} that it did in {a.facts.name}, more than "
                f"{limit}: the smaller stage was slowed by something (memory, recomputation), so no slope fits"
            )


def predict(of: Sequence[Launch], reference: StageFacts, target: StageFacts) -> Outlook:
    """Predict the target's throughput: shrunk log-linear where tokens a GPU are alike, else T = w b + s (GATES 4.2)."""
    if alike(reference, target):
        same = [p for p in of if alike(p.facts, target)]
        sizes, speeds = [p.facts.gpus for p in same], [p.throughput for p in same]
        node = target.tier_ends[:1] or (statistics.GPUS_PER_NODE,)
        # The node alone: what leaving it costs was learnt from published tables; of pods they say nothing, so those
        # are left to the canary.
        logarithm = statistics.weak_scaling(sizes, speeds, target.gpus, tiers=node)
        method = f"weak scaling: log-linear, slope shrunk to a mixture prior, breaks expected, {len(same)} launches"
        return Outlook(logarithm, None, method)
    try:
        logarithm = statistics.strong_scaling(
            [per_gpu(p.facts) for p in of], [p.step_seconds for p in of], per_gpu(target)
        )
    except ValueError as error:
        raise Undecided(f"{target.name} is {kind(reference, target)} from {reference.name}, and {error}") from error
    return Outlook(logarithm, per_gpu(target), f"step seconds = work x tokens a GPU + overhead, {len(of)} launches")


def registered(forecast: Mapping[str, Any] | None) -> float | None:
    """Return the throughput that was registered before a stage started, if any."""
    value = ((forecast or {}).get("throughput") or {}).get("median")
    return float(value) if value is not None and float(value) > 0 else None


def behind_forecast(evidence: Evidence, of: Sequence[Launch]) -> float | None:
    """Return observed over forecast throughput of the newest earlier stage; None where none was forecast."""
    last = newest(of)
    expected = registered(evidence.earlier[last.facts.name].forecast)
    return None if expected is None else last.throughput / expected
