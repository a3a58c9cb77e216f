"""The ``live:`` block of an experiment, a stage or a rehearsal: what looks at a running stage do about what they see.

Defaults stand here. A dump holds only what was said, so that blocks can lie over one another.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from tasks.config.cluster import Count, CountOrZero, NotNegative, Positive, Strict

Action = Literal["note", "page", "restart", "stop"]
"""note: written down; page: written where a person looks; restart: from the last good checkpoint; stop: GPUs freed."""

SMALLEST_TOLERANCE = 0.01  # twice the prior launch-to-launch sd of .005: a tighter bar is wrong however good its test

Tolerance = Annotated[float, Field(strict=True, ge=SMALLEST_TOLERANCE, lt=1, allow_inf_nan=False)]
Chance = Annotated[float, Field(strict=True, gt=0, lt=1, allow_inf_nan=False)]


class Said(Strict):
    """A mapping whose dump leaves out what was not said."""

    @model_serializer(mode="wrap")
    def _as_said(self, dumped: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dumped(self).items() if key in self.model_fields_set}


class ThroughputRule(Said):
    """Steps became slower than at the stage's own start, by more than ``tolerance``."""

    action: Action = Field(default="page", description="once the canary is over")
    in_canary: Action = Field(default="stop", description="while few GPU-hours are spent")
    tolerance: Tolerance = Field(default=0.02, description="relative; at least two sd from launch to launch")


class LossRule(Said):
    """The loss lies above what is expected at these tokens, by more than ``tolerance``."""

    action: Action = "stop"
    tolerance: Positive = Field(default=0.01, description="nats above what is expected")


class SpikesRule(Said):
    """Single losses far off (note), many of them (page), a loss that left and stays away (``action``)."""

    action: Action = "stop"
    z: Positive = Field(default=6.0, description="robust standard deviations above the median of the last 128")
    burst: Count = Field(default=3, description="so many in 10 steps are a page")
    level_steps: Count = Field(default=50, description="steps in a row above the stage's first-window level")
    level_margin: NotNegative = Field(default=0.1, description="nats above the highest loss of the first window")
    rise: Positive = Field(default=0.5, description="nats above the best moving average")
    rise_steps: Count = Field(default=30, description="steps in a row so far above it")


class FiniteRule(Said):
    """A loss or gradient norm is no finite number."""

    action: Action = "restart"
    restarts: CountOrZero = Field(default=3, description="at most so many in a stage")


class HangRule(Said):
    """No record came for longer than ``steps`` steps take, or before the first one for ``start_seconds``."""

    action: Action = "restart"
    steps: Positive = Field(default=20.0, description="median steps without a record")
    at_least_seconds: Positive = Field(default=300.0, description="a checkpoint or an evaluation may take as long")
    start_seconds: Positive = Field(default=1800.0, description="until the first step of an attempt is recorded")


class Live(Said):
    """The rules that every look at a running stage asks."""

    throughput: ThroughputRule = ThroughputRule()
    loss: LossRule = LossRule()
    spikes: SpikesRule = SpikesRule()
    finite: FiniteRule = FiniteRule()
    hang: HangRule = HangRule()
    false_stops: Chance = Field(
        default=0.02, description="chance of a false stop in the whole stage, all rules together"
    )

    @property
    def settings(self) -> dict[str, Any]:
        """All settings as plain JSON, defaults written out."""
        return {
            name: {key: getattr(value, key) for key in type(value).model_fields} if isinstance(value, Said) else value
            for name, value in ((name, getattr(self, name)) for name in Live.model_fields)
        }
