"""What a live rule says: an alarm, what is done about it, and the list of all that a stage has had."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.config.live import Action

_ORDER: tuple[Action, ...] = ("note", "page", "restart", "stop")
NOTES_KEPT = 100  # of a noisy stage of a million steps; pages, restarts and stops are all kept


@dataclass(frozen=True)
class Alarm:
    """One finding of one rule; ``value`` and ``limit`` share the unit that ``says`` names."""

    rule: str
    action: Action
    step: int
    time: float  # seconds since the epoch: of the record, else of the look
    says: str
    value: float | None = None
    limit: float | None = None
    window: tuple[int, int] | None = None  # first and last step of the evidence
    attempt: int = 1  # whose records are meant

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Alarm:
        """Read what :meth:`to_json` wrote."""
        window = value.get("window")
        return cls(**{**value, "window": tuple(window) if window else None})

    @property
    def last_good_step(self) -> int:
        """The last step whose checkpoint is trusted: before the evidence begins, where that is against the weights."""
        return self.window[0] - 1 if self.window and self.against_weights else self.step

    @property
    def against_weights(self) -> bool:
        """Whether the weights themselves are in doubt: a slow or hanging machine computes the same ones."""
        return self.rule in ("finite", "loss", "spikes")


def at_most(action: Action, most: Action) -> Action:
    """Return the milder of two actions."""
    return min(action, most, key=_ORDER.index)


def with_new(known: Sequence[Alarm], new: Sequence[Alarm]) -> list[Alarm]:
    """Return all alarms in order; of notes only the newest hundred."""
    together = [*known, *new]
    notes = [at for at, alarm in enumerate(together) if alarm.action == "note"]
    gone = set(notes[: max(0, len(notes) - NOTES_KEPT)])
    return [alarm for at, alarm in enumerate(together) if at not in gone]
