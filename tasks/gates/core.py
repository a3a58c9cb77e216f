"""What a gate is: a claim about metrics, its answer, and the registry from which the YAML schema is read."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal

import pandas as pd


class Outcome(StrEnum):
    """The answers of a gate; only PASS promotes."""

    PASS = "PASS"  # noqa: S105  # an outcome, not a password
    NEED_MORE_DATA = "NEED_MORE_DATA"
    INVALID = "INVALID"
    FAIL = "FAIL"


# GATES: a verdict is its worst check. FAIL says more than INVALID, which says more than NEED_MORE_DATA.
_BADNESS = {Outcome.PASS: 0, Outcome.NEED_MORE_DATA: 1, Outcome.INVALID: 2, Outcome.FAIL: 3}

When = Literal["entry", "early", "end"]
"""entry: before the stage starts; early: while it runs, once canary records are there; end: after its last step."""


def worst(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the worst outcome; of no outcomes at all: INVALID, since nothing was shown."""
    return max(outcomes, key=_BADNESS.__getitem__, default=Outcome.INVALID)


@dataclass(frozen=True)
class Check:
    """One gate's answer with all that a later reader needs to judge it again.

    ``estimate``, ``interval`` and ``limit`` share one unit, named in ``unit``; ``window`` says which records were
    used (``steps 111..180, phase train``); ``reason`` is one sentence for a person.
    """

    gate: str
    outcome: Outcome
    reason: str
    estimate: float | None = None
    interval: tuple[float, float] | None = None
    limit: float | None = None
    unit: str = ""
    n: int = 0
    window: str = ""
    against: str = ""  # what it was compared with: stage, baseline, forecast
    method: str = ""
    next_step: str = ""  # what a person does about it
    thresholds: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary; numbers that are not finite become None (JSON has none)."""
        plain = asdict(self)
        plain["outcome"] = str(self.outcome)
        for key in ("estimate", "limit"):
            value = plain[key]
            plain[key] = value if value is None or math.isfinite(value) else None
        if plain["interval"] is not None:
            plain["interval"] = [v if math.isfinite(v) else None for v in plain["interval"]]
        return plain

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Check:
        """Read what :meth:`to_json` wrote."""
        plain = dict(value)
        plain["outcome"] = Outcome(plain["outcome"])
        if plain.get("interval") is not None:
            low, high = plain["interval"]
            plain["interval"] = (-math.inf if low is None else low, math.inf if high is None else high)
        return cls(**plain)


@dataclass(frozen=True)
class StageFacts:
    """What a gate may know of a stage beside its metrics."""

    name: str
    gpus: int
    nodes: int
    emulated: bool
    throughput_batch_tokens: int  # tokens a step of the recipe whose speed is recorded: tells weak from strong scaling
    batch_tokens: int  # tokens a step that is really trained (the last batch of the stage)
    tier: int  # network tiers that the stage spans: 0 inside one node, 1 between nodes, 2 beyond a leaf, ...
    seed: int
    fingerprint: str = ""  # of the data
    first_step: int = 0  # steps before it belong to earlier stages (replay repeats them)
    last_step: int = 0


@dataclass(frozen=True)
class Evidence:
    """Everything a gate may look at. Frames are as :func:`tasks.records.Metrics` gives them."""

    stage: StageFacts
    steps: pd.DataFrame  # this stage's step records, last attempt of each; empty before it starts
    held_out: pd.DataFrame  # this stage's held-out rows
    earlier: Mapping[str, EarlierStage] = field(default_factory=dict)  # in ladder order, all stages before this one
    forecast: Mapping[str, Any] | None = None  # forecast.json of this stage
    baseline: Mapping[str, Any] | None = None  # stored reference curve for the same data fingerprint
    previous: str | None = None  # stage whose hand-over this one started from


@dataclass(frozen=True)
class EarlierStage:
    """A stage before the one in question, as evidence."""

    facts: StageFacts
    steps: pd.DataFrame
    held_out: pd.DataFrame


GateFunction = Callable[..., Check]


@dataclass(frozen=True)
class Gate:
    """A registered gate: its claim (docstring), its thresholds (signature), when it is judged, what it needs."""

    name: str
    function: GateFunction
    when: When
    needs: tuple[str, ...]  # fields of records, or capabilities: replay, held_out

    @property
    def claim(self) -> str:
        """First line of the docstring: what the gate says when it passes."""
        return (inspect.getdoc(self.function) or "").splitlines()[0]

    @property
    def thresholds(self) -> dict[str, inspect.Parameter]:
        """The keyword parameters: the gate's YAML schema."""
        return {n: p for n, p in inspect.signature(self.function).parameters.items() if p.kind is p.KEYWORD_ONLY}


REGISTRY: dict[str, Gate] = {}


def gate(*, when: When, needs: Sequence[str] = ()) -> Callable[[GateFunction], GateFunction]:
    """Register a function ``(evidence, *, thresholds...) -> Check`` as the gate of the same name."""

    def register(function: GateFunction) -> GateFunction:
        name = function.__name__
        if name in REGISTRY:
            raise ValueError(f"two gates are called {name!r}")
        REGISTRY[name] = Gate(name, function, when, tuple(needs))
        return function

    return register
