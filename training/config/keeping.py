"""When checkpoints are written and the held-out set is looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Checkpointing:
    """When checkpoints are written beside those at the hand-over and at the end, and how many are kept."""

    every_steps: int = 1000
    every_minutes: float | None = None  # as well; 15 is the usual practice for runs of days
    keep: int = 3


@dataclass(frozen=True)
class HeldOut:
    """The fixed held-out set: how many sequences, and how often it is evaluated between start and end."""

    sequences: int = 256
    every_tokens: int | None = None
