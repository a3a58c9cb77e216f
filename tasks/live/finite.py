"""A loss or a gradient norm that is no finite number: a fact, which needs no statistics, but a limit on restarts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tasks.config.live import Action
from tasks.live.alarms import Alarm
from tasks.live.steps import Step, Terms


@dataclass
class Finite:
    """What the rule remembers: where it ordered restarts, and whether it has spoken already."""

    restarted: list[int] = field(default_factory=list)  # steps at which a restart was ordered since a person began it
    bad: bool = False  # the last step was not finite: only the first of a row speaks
    ordered: bool = False  # in this attempt a restart or stop is ordered; what follows comes of the same weights

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Finite:
        """Read what :meth:`to_json` wrote."""
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary."""
        return dict(vars(self))

    def begin_again(self) -> None:
        """Look at the next attempt afresh."""
        self.bad = self.ordered = False

    def see(self, step: Step, terms: Terms, attempt: int) -> Iterator[Alarm]:
        """Take one more step, also one that was taken before; one that an older attempt left behind says nothing."""
        if step.attempt is not None and step.attempt < attempt:
            return
        was_bad, self.bad = self.bad, not step.finite
        if step.finite or was_bad or self.ordered:
            return
        action, why = self._action(step.number, terms)
        self.ordered = action in ("restart", "stop")
        if action == "restart":
            self.restarted.append(step.number)
        what = "loss" if step.loss is None else "gradient norm"
        says = f"the {what} of step {step.number} is no finite number{why}"
        yield Alarm("finite", action, step.number, step.time, says, window=(step.number, step.number))

    def _action(self, number: int, terms: Terms) -> tuple[Action, str]:
        """Return what is done, and why it is more than a restart where one would change nothing."""
        rule = terms.settings.finite
        if rule.action != "restart":
            return terms.granted(rule.action), ""
        if number in self.restarted:
            return terms.granted("stop"), " again: the last good checkpoint leads there each time, so it is no glitch"
        if len(self.restarted) >= rule.restarts:
            steps = ", ".join(str(step) for step in self.restarted) or "none"
            return terms.granted("stop"), f"; finite.restarts: {rule.restarts} are used up (at steps {steps})"
        return "restart", ""
