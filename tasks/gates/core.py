"""What a gate is: a claim about metrics, its answer, and the registry from which the YAML schema is read."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from tasks.gates.facts import EarlierStage, Evidence, Noise, Probe, StageFacts, When

__all__ = [
    "OPTIONS",
    "REGISTRY",
    "Check",
    "EarlierStage",
    "Evidence",
    "Gate",
    "Measurement",
    "Noise",
    "Outcome",
    "Probe",
    "StageFacts",
    "Undecided",
    "Unusable",
    "When",
    "enforced",
    "gate",
    "gate_of",
    "judge",
    "judge_all",
    "worst",
]

OPTIONS: dict[str, type] = {"shadow": bool}
"""What a YAML file may say of any gate beside its thresholds. shadow: asked and shown, but not enforced."""


class Outcome(StrEnum):
    """The answers of a gate; only PASS promotes."""

    PASS = "PASS"  # noqa: S105  # an outcome, not a password
    NEED_MORE_DATA = "NEED_MORE_DATA"
    INVALID = "INVALID"
    FAIL = "FAIL"
    NOT_COMPARABLE = "NOT_COMPARABLE"  # by a declared change: nothing shown, nothing held against it


# GATES: a verdict is its worst check. FAIL says more than INVALID, which says more than NEED_MORE_DATA.
_BADNESS = {Outcome.PASS: 1, Outcome.NEED_MORE_DATA: 2, Outcome.INVALID: 3, Outcome.FAIL: 4, Outcome.NOT_COMPARABLE: 0}


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


def enforced(checks: Sequence[Check]) -> list[Check]:
    """Return the checks that count: a shadow's answer is shown, and neither promotes nor stops."""
    return [check for check in checks if not check.shadow]


GateFunction = Callable[..., Check]


@dataclass(frozen=True)
class Gate:
    """A registered gate: its claim (docstring), its thresholds (signature), when it is judged, what it needs."""

    name: str
    function: GateFunction
    when: When
    needs: tuple[str, ...]  # fields of records, or capabilities: replay, held_out
    also: tuple[When, ...] = ()  # further moments at which the claim is judged
    ordered: tuple[tuple[str, str], ...] = ()  # thresholds of which the first may not exceed the second
    any_of: tuple[str, ...] = ()  # thresholds of which one at least must be given

    @property
    def claim(self) -> str:
        """First line of the docstring: what the gate says when it passes."""
        return (inspect.getdoc(self.function) or "").splitlines()[0]

    @property
    def thresholds(self) -> dict[str, inspect.Parameter]:
        """The keyword parameters: the gate's YAML schema."""
        return {n: p for n, p in inspect.signature(self.function).parameters.items() if p.kind is p.KEYWORD_ONLY}

    @property
    def judges_learning(self) -> bool:
        """Whether it claims something of what was learnt; that a loss is finite is a claim about numbers."""
        return bool({"loss", "held_out", "replay"} & set(self.needs)) and self.name != "finite_loss"

    @property
    def moments(self) -> tuple[When, ...]:
        """All moments at which the gate is judged."""
        return (self.when, *self.also)


REGISTRY: dict[str, Gate] = {}


def gate(
    *,
    when: When,
    needs: Sequence[str] = (),
    also: Sequence[When] = (),
    ordered: Sequence[tuple[str, str]] = (),
    any_of: Sequence[str] = (),
) -> Callable[[GateFunction], GateFunction]:
    """Register a function ``(evidence, *, thresholds...) -> Check`` as the gate of the same name."""

    def register(function: GateFunction) -> GateFunction:
        name = function.__name__
        if name in REGISTRY:
            raise ValueError(f"two gates are called {name!r}")
        REGISTRY[name] = Gate(name, function, when, tuple(needs), tuple(also), tuple(ordered), tuple(any_of))
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


def judge(gate: Gate, evidence: Evidence, asked: Mapping[str, Any] | None = None) -> Check:
    """Ask one gate, with thresholds and :data:`OPTIONS` as a YAML file has them.

    Whatever goes wrong inside becomes INVALID with the reason, never PASS and never a traceback. The only place where
    a gate is called: a number in the answer that is not finite makes a PASS INVALID too.
    """
    given = {key: value for key, value in (asked or {}).items() if key not in OPTIONS}
    policy = {n: given.get(n, None if p.default is p.empty else p.default) for n, p in gate.thresholds.items()}
    check = _answer(gate, evidence, given)
    numbers = [v for v in (check.estimate, check.limit, *(check.interval or ())) if v is not None]
    if check.outcome is Outcome.PASS and not all(math.isfinite(v) for v in numbers):
        said = f"cannot be judged: {check.reason} (a number is not finite)"
        check = replace(check, outcome=Outcome.INVALID, reason=said)
    return replace(check, gate=gate.name, thresholds=policy, shadow=bool((asked or {}).get("shadow", False)))


def _answer(gate: Gate, evidence: Evidence, given: Mapping[str, Any]) -> Check:
    """Call the gate; a refusal and a bug become a check as well."""
    import numpy as np

    try:
        if evidence.stage.synthetic and gate.judges_learning:
            raise Unusable("the samples are synthetic: a loss on random tokens is no evidence of what was learnt")
        with np.errstate(all="ignore"):  # what comes of 1e300 is judged below, and nobody's log is filled with it
            return gate.function(evidence, **given)
    except Undecided as reason:
        said = reason.measurement.says if reason.measurement else "get what is missing"
        return Check(
            gate.name,
            Outcome.NEED_MORE_DATA,
            f"cannot be decided yet: {reason}",
            measurement=reason.measurement,
            next_step=said,
        )
    except Unusable as reason:
        return _invalid(gate, f"cannot be judged: {reason}")
    except Exception as error:  # a gate that breaks has shown nothing
        return _invalid(gate, f"cannot be judged: the gate broke with {type(error).__name__}: {error}")


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


def _invalid(gate: Gate, reason: str) -> Check:
    return Check(
        gate.name,
        Outcome.INVALID,
        reason,
        next_step="look at the stage's metrics.jsonl: without sound records nothing has been shown",
    )
