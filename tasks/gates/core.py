"""What a gate is: a claim about metrics, its answer, and the registry from which the YAML schema is read."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # DAG files read the gates' names and thresholds at every parse: no frames for that
    import pandas as pd


class Outcome(StrEnum):
    """The answers of a gate; only PASS promotes."""

    PASS = "PASS"  # noqa: S105  # an outcome, not a password
    NEED_MORE_DATA = "NEED_MORE_DATA"
    INVALID = "INVALID"
    FAIL = "FAIL"
    NOT_COMPARABLE = (
        "NOT_COMPARABLE"  # by a declared change: nothing shown, nothing held against it
    )


# GATES: a verdict is its worst check. FAIL says more than INVALID, which says more than NEED_MORE_DATA.
_BADNESS = {Outcome.PASS: 1, Outcome.NEED_MORE_DATA: 2, Outcome.INVALID: 3, Outcome.FAIL: 4, Outcome.NOT_COMPARABLE: 0}

When = Literal["entry", "early", "end"]
"""entry: before the stage starts; early: while it runs, once canary records are there; end: after its last step."""


def worst(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the worst outcome; of no outcomes at all: INVALID, since nothing was shown.

    A check that cannot compare because of a declared change does not count, unless there is no other.
    """
    return max(outcomes, key=_BADNESS.__getitem__, default=Outcome.INVALID)


MeasurementKind = Literal["more_steps", "probe", "canary", "person"]
"""more_steps: the stage goes on anyway; probe: a short extra job of its own, at another size or at the same one again;
canary: the next stage's first steps, which it takes in any case; person: no measurement would decide it."""


@dataclass(frozen=True)
class Measurement:
    """The cheapest measurement that may decide what a gate could not, its price, and that of being wrong."""

    kind: MeasurementKind
    gpus: int
    steps: int
    gpu_hours: float  # what it costs
    wrong_gpu_hours: float | None = None  # what a wrong decision costs until it is noticed; None where unknown
    says: str = ""  # one sentence for a person


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
    measurement: Measurement | None = None  # what would decide it, where the outcome is NEED_MORE_DATA
    inputs: Mapping[str, str] = field(default_factory=dict)  # of each noise used: "measured, 8 repeats" or "prior"
    shadow: bool = False  # asked and shown, not enforced

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
        if plain.get("measurement") is not None:
            plain["measurement"] = Measurement(**plain["measurement"])
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
class Noise:
    """What repeats at one scale have shown (``scaleup calibrate``); None where a gate must go by its prior."""

    launch_sd: float | None = None  # relative sd of throughput from launch to launch
    step_sd: float | None = None  # relative sd of a step's seconds within a launch
    loss_sd: float | None = None  # nats; sd of the held-out loss from run to run at equal tokens
    repeats: int = 0
    source: str = ""  # file it was read from


@dataclass(frozen=True)
class Probe:
    """A short extra job that measured speed: its facts (``gpus`` is its own size) and its step records."""

    facts: StageFacts
    steps: pd.DataFrame


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
    moment: When = "end"  # when this is judged: an early look may not ask for the last step
    probes: tuple[Probe, ...] = ()  # taken for this stage, at its own size
    noise: Noise = Noise()
    declared: Mapping[str, str] = field(default_factory=dict)  # declared changes against the baseline: what, and why


@dataclass(frozen=True)
class EarlierStage:
    """A stage before the one in question, as evidence."""

    facts: StageFacts
    steps: pd.DataFrame
    held_out: pd.DataFrame
    forecast: Mapping[str, Any] | None = None  # what had been registered for it
    probes: tuple[Probe, ...] = ()  # taken after it or inside its allocation


GateFunction = Callable[..., Check]


@dataclass(frozen=True)
class Gate:
    """A registered gate: its claim (docstring), its thresholds (signature), when it is judged, what it needs."""

    name: str
    function: GateFunction
    when: When
    needs: tuple[str, ...]  # fields of records, or capabilities: replay, held_out
    also: tuple[When, ...] = ()  # further moments at which the claim is judged

    @property
    def claim(self) -> str:
        """First line of the docstring: what the gate says when it passes."""
        return (inspect.getdoc(self.function) or "").splitlines()[0]

    @property
    def thresholds(self) -> dict[str, inspect.Parameter]:
        """The keyword parameters: the gate's YAML schema."""
        return {n: p for n, p in inspect.signature(self.function).parameters.items() if p.kind is p.KEYWORD_ONLY}

    @property
    def moments(self) -> tuple[When, ...]:
        """All moments at which the gate is judged."""
        return (self.when, *self.also)


REGISTRY: dict[str, Gate] = {}


def gate(*, when: When, needs: Sequence[str] = (), also: Sequence[When] = ()) -> Callable[[GateFunction], GateFunction]:
    """Register a function ``(evidence, *, thresholds...) -> Check`` as the gate of the same name."""

    def register(function: GateFunction) -> GateFunction:
        name = function.__name__
        if name in REGISTRY:
            raise ValueError(f"two gates are called {name!r}")
        REGISTRY[name] = Gate(name, function, when, tuple(needs), tuple(also))
        return function

    return register


class Unusable(Exception):
    """Evidence that cannot be judged; a gate raises it with the reason, and :func:`judge` answers INVALID."""


class Undecided(Unusable):
    """Sound evidence, but too little of it to say yes or no: :func:`judge` answers NEED_MORE_DATA."""

    def __init__(self, reason: str, measurement: Measurement | None = None) -> None:
        """Take the reason and, where one is known, the measurement that would decide."""
        super().__init__(reason)
        self.measurement = measurement


def judge(gate: Gate, evidence: Evidence, thresholds: Mapping[str, Any] | None = None) -> Check:
    """Ask one gate; whatever goes wrong inside it becomes INVALID with the reason, never PASS and never a traceback.

    The only place where a gate is called: a number in the answer that is not finite makes a PASS INVALID too.
    """
    given = dict(thresholds or {})
    policy = {n: given.get(n, None if p.default is p.empty else p.default) for n, p in gate.thresholds.items()}
    try:
        check = gate.function(evidence, **given)
    except Undecided as reason:
        more = f"cannot be decided yet: {reason}"
        return Check(
            gate.name,
            Outcome.NEED_MORE_DATA,
            more,
            thresholds=policy,
            measurement=reason.measurement,
            next_step=reason.measurement.says if reason.measurement else "get what is missing",
        )
    except Unusable as reason:
        return _invalid(gate, policy, f"cannot be judged: {reason}")
    except Exception as error:  # a gate that breaks has shown nothing
        return _invalid(gate, policy, f"cannot be judged: the gate broke with {type(error).__name__}: {error}")
    check = replace(check, gate=gate.name, thresholds=policy)
    numbers = [v for v in (check.estimate, check.limit, *(check.interval or ())) if v is not None]
    if check.outcome is Outcome.PASS and any(math.isnan(v) for v in numbers):
        return replace(check, outcome=Outcome.INVALID, reason=f"cannot be judged: {check.reason} (a number is NaN)")
    return check


def judge_all(evidence: Evidence, policy: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    """Ask all gates of ``policy`` (key to thresholds) that are judged at the evidence's moment.

    A gate asked several times has keys ``scaling_efficiency`` and ``scaling_efficiency.gpus_8``; its check says which.
    """
    asked = [(key, gate_of(key), thresholds) for key, thresholds in policy.items()]
    return [
        replace(judge(gate, evidence, thresholds), gate=key)
        for key, gate, thresholds in asked
        if evidence.moment in gate.moments
    ]


def gate_of(key: str) -> Gate:
    """Return the gate that a key of a stage's policy asks."""
    return REGISTRY[key.partition(".")[0]]


def _invalid(gate: Gate, policy: Mapping[str, Any], reason: str) -> Check:
    return Check(
        gate.name,
        Outcome.INVALID,
        reason,
        thresholds=policy,
        next_step="look at the stage's metrics.jsonl: without sound records nothing has been shown",
    )
