"""Losses far off their neighbours, and a loss that left and does not come back: GATES 2.6's robust rule as a stream."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tasks.config.live import Action, SpikesRule
from tasks.live.alarms import Alarm, at_most
from tasks.live.steps import Step, Terms

HISTORY, LEAST_HISTORY = 128, 64  # steps; OLMo-core's monitor too is silent before 64
FIRST_WINDOW = 50  # steps whose highest loss is the level that a diverged loss does not come back below
BURST_STEPS = 10
_SD_OF_MAD = 1.4826  # of a normal distribution
EMA_WEIGHT = 0.05  # of a new loss in the moving average: a memory of about 20 steps


@dataclass
class Spikes:
    """What the rule remembers between steps."""

    recent: list[float] = field(default_factory=list)  # the last HISTORY losses, oldest first
    marks: list[int] = field(default_factory=list)  # steps of spikes within the last BURST_STEPS
    bursting: bool = False
    seen: int = 0  # own steps
    level: float | None = None  # highest loss of the first window
    above: int = 0  # steps in a row above level and margin
    average: float | None = None
    best: float | None = None
    risen: int = 0  # steps in a row above the best average and rise
    _sorted: list[float] = field(default_factory=list, repr=False)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Spikes:
        """Read what :meth:`to_json` wrote."""
        return cls(**value, _sorted=sorted(value["recent"]))

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary."""
        return {key: value for key, value in vars(self).items() if key != "_sorted"}

    def begin_again(self) -> None:
        """Forget what was being counted: another attempt goes on from an older checkpoint."""
        self.above = self.risen = 0
        self.marks, self.bursting = [], False

    def see(self, step: Step, terms: Terms) -> Iterator[Alarm]:
        """Take one more step; its loss is compared with those before it."""
        if step.loss is None:
            return
        rule = terms.settings.spikes
        yield from self._spike(step, step.loss, terms)
        self._remember(step.loss)
        span = terms.span_of(step.number)
        if span is not None and span.phase == "replay":
            return
        yield from self._level(step, step.loss, rule, terms)
        yield from self._rise(step, step.loss, rule, terms)

    def _spike(self, step: Step, loss: float, terms: Terms) -> Iterator[Alarm]:
        rule = terms.settings.spikes
        self.marks = [mark for mark in self.marks if step.number - mark < BURST_STEPS]
        self.bursting = self.bursting and bool(self.marks)
        center, spread = self._spread(loss, rule.z)
        if spread is None or loss - center <= rule.z * spread:
            return
        self.marks.append(step.number)
        limit = center + rule.z * spread
        if len(self.marks) >= rule.burst and not self.bursting:
            self.bursting = True
            says = f"{len(self.marks)} losses within {BURST_STEPS} steps lie far above the median {center:.4f}"
            window = (self.marks[0], step.number)
            yield _alarm(step, terms, "page", f"{says}; the last is {loss:.4f}", loss, limit, window)
        elif len(self.marks) == 1:
            z = (loss - center) / spread
            says = f"loss {loss:.4f} is {z:.1f} robust sd above {center:.4f}, the median of the last {HISTORY} steps"
            yield _alarm(step, terms, "note", says, loss, limit, (step.number, step.number))

    def _spread(self, loss: float, z: float) -> tuple[float, float | None]:
        """Return median and robust sd of the losses before; None for the sd where the loss cannot be a spike."""
        count = len(self._sorted)
        if count < LEAST_HISTORY:
            return 0.0, None
        center, quarter = _median(self._sorted), count // 4
        # Half of all values lie within one MAD of the median, so it is no less than the nearer quartile's distance.
        least = min(center - self._sorted[quarter], self._sorted[-1 - quarter] - center)
        if loss <= center or loss - center <= z * _SD_OF_MAD * least:
            return center, None
        mad = _median(sorted(abs(value - center) for value in self._sorted))
        return center, _SD_OF_MAD * mad + 1e-12 + 1e-9 * abs(center)

    def _remember(self, loss: float) -> None:
        self.recent.append(loss)
        insort(self._sorted, loss)
        if len(self.recent) > HISTORY:
            del self._sorted[bisect_left(self._sorted, self.recent.pop(0))]

    def _level(self, step: Step, loss: float, rule: SpikesRule, terms: Terms) -> Iterator[Alarm]:
        if self.seen < FIRST_WINDOW:
            self.seen += 1
            self.level = loss if self.level is None else max(self.level, loss)
            return
        limit = (self.level if self.level is not None else loss) + rule.level_margin
        self.above = self.above + 1 if loss > limit else 0
        if self.above == rule.level_steps:
            says = f"loss {loss:.4f}: {self.above} steps in a row above {limit:.4f}, the level of the first window"
            window = (step.number - self.above + 1, step.number)
            yield _alarm(step, terms, "stop", says, loss, limit, window)

    def _rise(self, step: Step, loss: float, rule: SpikesRule, terms: Terms) -> Iterator[Alarm]:
        limit = None if self.best is None else self.best + rule.rise
        self.risen = self.risen + 1 if limit is not None and loss > limit else 0
        if limit is not None and self.risen == rule.rise_steps:
            says = f"loss {loss:.4f}: {self.risen} steps in a row more than {rule.rise:g} nats above the best average"
            window = (step.number - self.risen + 1, step.number)
            yield _alarm(step, terms, "stop", f"{says}, {self.best:.4f}", loss, limit, window)
        before = loss if self.average is None else self.average
        self.average = before + EMA_WEIGHT * (loss - before)
        self.best = self.average if self.best is None else min(self.best, self.average)


def _alarm(
    step: Step, terms: Terms, action: Action, says: str, value: float, limit: float, window: tuple[int, int]
) -> Alarm:
    most = terms.settings.spikes.action
    done = terms.granted(most if action == "stop" else at_most(action, most))
    return Alarm("spikes", done, step.number, step.time, says, value, limit, window)


def _median(ordered: list[float]) -> float:
    half, odd = divmod(len(ordered), 2)
    return ordered[half] if odd else 0.5 * (ordered[half - 1] + ordered[half])
