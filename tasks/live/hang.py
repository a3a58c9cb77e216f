"""A job that runs and records nothing: judged by the clock of whoever looks, never by modelled step times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tasks.live.alarms import Alarm
from tasks.live.steps import Step, Terms

REMEMBERED = 32  # steps whose wall seconds are known


@dataclass
class Hang:
    """Seconds of silence, as looks have witnessed them: a laptop that slept, or looks that failed, are no silence."""

    walls: list[float] = field(default_factory=list)  # wall seconds of the last steps
    started: bool = False  # a step of this attempt is recorded
    silence: float = 0.0  # seconds without a record so far
    longest: float = 0.0  # silence that a record ended: a checkpoint, an evaluation
    last_look: float | None = None
    spoken: bool = False

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Hang:
        """Read what :meth:`to_json` wrote."""
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary."""
        return dict(vars(self))

    def begin_again(self) -> None:
        """Give the next attempt its time to start."""
        self.started = self.spoken = False
        self.silence, self.last_look = 0.0, None

    def see(self, step: Step) -> None:
        """Take the wall seconds of one more step."""
        self.started = True
        if step.wall_seconds is not None:
            self.walls = [*self.walls[-REMEMBERED + 1 :], step.wall_seconds]

    def header(self) -> None:
        """Note that the trainer has begun, maybe once more: the first step may take its time."""
        self.started = False

    def limit(self, terms: Terms) -> float:
        """Return the seconds of silence that are too many.

        The longest silence that was none counts twice, so that what a checkpoint takes is learnt.
        """
        rule = terms.settings.hang
        if not self.started:
            return rule.start_seconds + terms.start_seconds
        steps = rule.steps * median(self.walls) if self.walls else 0.0
        return max(steps, rule.at_least_seconds, 2.0 * self.longest)

    def look(self, new: Sequence[Any], running: bool, step: int, terms: Terms, now: float) -> Iterator[Alarm]:
        """Take one look's clock; at least four looks must agree that nothing came, unless they are far apart."""
        limit = self.limit(terms)
        waited = 0.0 if self.last_look is None else max(0.0, now - self.last_look)
        self.last_look = now
        self.silence += min(waited, max(limit / 4, 2 * terms.poll_seconds))
        if new or not running:
            if running and self.started:
                self.longest = max(self.longest, self.silence)
            self.silence, self.spoken = 0.0, False
            return
        if self.silence > limit and not self.spoken:
            self.spoken = True
            says = f"no record for {self.silence:,.0f} s, {limit:,.0f} s are allowed"
            says += f" after step {step}" if self.started else " before the first step"
            action = terms.granted(terms.settings.hang.action)
            yield Alarm("hang", action, step, now, says, self.silence, limit)
