"""What is known before a stage: how its loss should move with its tokens (shape only, no level), and noise measured."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

POINTS = 200  # of a stored curve; a curve is smooth, and the state of a look stays small


@dataclass(frozen=True)
class Expected:
    """A line through ``points`` (ln tokens, nats), flat beyond its ends; only differences of it are used.

    The level is the stage's own first window: held-out and training losses differ by a constant that nobody knows.
    """

    source: str
    points: tuple[tuple[float, float], ...] = ((0.0, 0.0),)

    def at(self, tokens: float) -> float:
        """Return the line's nats after ``tokens``."""
        x = math.log(tokens)
        after = bisect_left(self.points, (x, -math.inf))
        if after == 0 or after == len(self.points):
            return self.points[min(after, len(self.points) - 1)][1]
        (x0, y0), (x1, y1) = self.points[after - 1], self.points[after]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary."""
        return {"source": self.source, "points": [list(point) for point in self.points]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Expected:
        """Read what :meth:`to_json` wrote."""
        return cls(str(value["source"]), tuple((float(x), float(y)) for x, y in value["points"]))


@dataclass(frozen=True)
class Known:
    """What a rule asks while its first window fills. Noise that no repeats have measured is 0."""

    expected: Expected
    launch_sd: float = 0.0  # relative; of throughput from launch to launch
    loss_sd: float = 0.0  # nats; from run to run at equal tokens
    slowest: tuple[int, float] | None = (
        None  # batch in sequences, and a step's seconds at the forecast's lowest quantile
    )


def flat() -> Expected:
    """Expect the loss of the stage's own first window to the end: a falling loss only makes the rule milder."""
    return Expected("the stage's own first window")


def nothing(fingerprint: str, start: tuple[float, float] | None) -> Known:
    """Know nothing beside the stage itself."""
    return Known(flat())


def from_curve(tokens: Sequence[float], losses: Sequence[float]) -> Expected | None:
    """Return the shape of a stored reference run; None where it is no rising curve of finite numbers."""
    numbers = all(isinstance(value, int | float) and math.isfinite(value) for value in (*tokens, *losses))
    sound = len(tokens) == len(losses) >= 2 and numbers and tokens[0] > 0
    if not sound or any(after <= before for before, after in pairwise(tokens)):
        return None
    chosen = sorted({round(at * (len(tokens) - 1) / (POINTS - 1)) for at in range(POINTS)})
    return Expected("the reference curve", tuple((math.log(tokens[at]), losses[at]) for at in chosen))


def from_forecast(forecast: Mapping[str, Any] | None, start: tuple[float, float] | None) -> Expected | None:
    """Return the line from the held-out loss with which the stage began to the upper end of its registered forecast.

    The upper end, since a forecast that proves a little too good must not stop a healthy stage.
    """
    said = (forecast or {}).get("held_out_loss") or {}
    high, tokens = said.get("high"), said.get("tokens")
    if start is None or high is None or tokens is None or not 0 < start[0] < tokens:
        return None
    return Expected("the registered forecast", ((math.log(start[0]), start[1]), (math.log(tokens), float(high))))
