"""When checkpoints are written and the held-out set is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Checkpointing:
    """When checkpoints are written beside those at the hand-over and at the end, and how many are kept."""

    every_steps: int = 1000
    every_minutes: float | None = None  # as well; 15 is the usual practice for runs of days
    keep: int = 3


@dataclass(frozen=True)
class StoreOrders:
    """Where whole checkpoints go beside training, and where a job looks for one that its folder has lost."""

    series: str  # name of the stage's checkpoints in the store
    settings: Mapping[str, Any]  # as training.store.StoreSettings writes itself; never credentials
    set_aside: tuple[tuple[int, float], ...] = ()  # (step, time): later steps written before then are not gone on from

    def is_set_aside(self, step: int, written: float) -> bool:
        """Whether a checkpoint is one that nobody goes on from: its stage was set back to before it."""
        return any(step > after and written < moment for after, moment in self.set_aside)


@dataclass(frozen=True)
class HeldOut:
    """The fixed held-out set: how many sequences, and how often it is evaluated between start and end."""

    sequences: int = 256
    every_tokens: int | None = None
