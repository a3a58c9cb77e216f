"""A step's record as the live rules see it, and what the plan says of the stage that it belongs to."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tasks.config.live import Action, Live
from tasks.live.alarms import at_most
from tasks.live.expected import Known, nothing
from training.config import Span

ABSURD = 1e100
RULES_THAT_MAY_STOP = ("throughput", "loss", "spikes")  # those whose evidence is noisy; a NaN or a hang is a fact


@dataclass(frozen=True)
class Step:
    """One step's record; a number that is absent or not finite is None."""

    number: int
    tokens: float | None
    loss: float | None
    step_seconds: float | None
    wall_seconds: float | None  # of the machine that really ran
    finite: bool  # loss, and the gradient norm where it counts
    time: float
    attempt: int | None  # as the trainer wrote it


@dataclass(frozen=True)
class Terms:
    """What the plan says about a stage's steps, and who may do what."""

    spans: tuple[Span, ...]
    settings: Live = field(default_factory=Live)
    emulated: bool = False
    half_precision: bool = False  # fp16 skips a step whose gradients overflow: an infinite norm is its daily bread
    leave: bool = False  # a person let the stage go on whatever its rules say: nothing stops any more, it pages
    poll_seconds: float = 1.0
    start_seconds: float = 0.0  # what runs inside the job before the training, beside the rule's own limit
    known: Callable[[str, tuple[float, float] | None], Known] = nothing
    # asked of the data's fingerprint and the held-out row (tokens, loss) with which the stage began

    @cached_property
    def _first_steps(self) -> list[int]:
        return [span.first_step for span in self.spans]

    def span_of(self, number: int) -> Span | None:
        """Return the span of a step; None where the plan knows no such step."""
        at = bisect_right(self._first_steps, number) - 1
        span = self.spans[at] if at >= 0 else None
        return span if span is not None and number <= span.last_step else None

    @property
    def own_steps(self) -> int:
        """Steps that no earlier stage has taken."""
        return sum(span.steps for span in self.spans if span.phase != "replay")

    @property
    def false_stop_share(self) -> float:
        """Chance of a false stop that each rule which may stop is allowed in the whole stage."""
        rules = self.settings
        actions = {
            "throughput": {rules.throughput.action, rules.throughput.in_canary},
            "loss": {rules.loss.action},
            "spikes": {rules.spikes.action},
        }
        count = sum("stop" in actions[name] for name in RULES_THAT_MAY_STOP)
        return rules.false_stops / max(1, count)

    def granted(self, action: Action) -> Action:
        """Return what is really done: after a person's leave nothing stops."""
        return at_most(action, "page") if self.leave and action == "stop" else action

    def read(self, record: Mapping[str, Any], now: float) -> Step | None:
        """Return a step's record, or None where it has no step number: that is for the records' reader to name."""
        number = record.get("step")
        if isinstance(number, bool) or not isinstance(number, int | float) or number != number // 1:
            return None
        loss = finite(record.get("loss"))
        norm_counts = "grad_norm" in record and not self.half_precision
        seconds, wall = positive(record.get("step_seconds")), positive(record.get("wall_seconds"))
        attempt = record.get("attempt")
        return Step(
            number=int(number),
            tokens=positive(record.get("tokens")),
            loss=loss,
            step_seconds=seconds,
            wall_seconds=wall if wall is not None or self.emulated else seconds,
            finite=loss is not None and (not norm_counts or finite(record["grad_norm"]) is not None),
            time=finite(record.get("time")) or now,
            attempt=attempt if isinstance(attempt, int) else None,
        )


def finite(value: Any) -> float | None:
    """Return a number, or None where it is none or not finite; one beyond all reason is cut, so that squares exist."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond all floats
        return None
    return max(-ABSURD, min(ABSURD, number)) if math.isfinite(number) else None


def positive(value: Any) -> float | None:
    """Return a number above zero, or None."""
    number = finite(value)
    return number if number is not None and number > 0 else None
