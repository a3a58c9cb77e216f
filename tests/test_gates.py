"""What holds for every gate: it is registered with a claim, it fails closed, and its answer survives a file."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

import numpy as np
import pandas as pd
import pytest
from gate_evidence import THRESHOLDS, ask, damaged, facts, fields, healthy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks import statistics
from tasks.gates import REGISTRY, Check, Evidence, Gate, Outcome, Unusable, enforced, frames, gate, judge, worst
from tasks.gates.core import OPTIONS

NAMES = sorted(REGISTRY)


def test_the_gates_of_the_ladder():
    assert set(NAMES) == {
        "canary", "finite_loss", "forecast_efficiency", "goodput", "loss_near_baseline", "memory_headroom",
        "replay_parity", "resume_parity", "scaling_efficiency", "stable_loss", "stall_free", "steady_throughput",
        "too_good", "within",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_gate_claims_something_and_its_thresholds_are_typed(name: str):
    gate = REGISTRY[name]
    assert gate.claim.endswith(".")
    assert gate.needs
    assert gate.when in gate.moments
    hints = get_type_hints(gate.function)  # of Annotated[float, Gt(0)] the type alone
    plain = {hints[key] for key in gate.thresholds if get_origin(hints[key]) is not Literal}
    assert plain <= {float, int, str, float | None}
    assert {key for pair in gate.ordered for key in pair} | set(gate.any_of) <= set(gate.thresholds)
    assert not set(gate.thresholds) & set(OPTIONS)


@pytest.mark.parametrize("name", NAMES)
def test_healthy_evidence_passes_with_everything_filled_in(name: str):
    check = ask(name, healthy(name))
    assert check.outcome is Outcome.PASS, check.reason
    assert check.gate == name
    assert None not in (check.estimate, check.limit)
    assert all((check.unit, check.n, check.window, check.method))
    assert set(check.thresholds) == set(REGISTRY[name].thresholds)
    assert Check.from_json(json.loads(json.dumps(check.to_json()))) == check


@pytest.mark.parametrize("name", NAMES)
def test_a_gate_that_must_be_told_something_is_told_it_here(name: str):
    """A required threshold without an entry in THRESHOLDS would make every test of spoilt records pass for nothing."""
    gate = REGISTRY[name]
    required = {key for key, p in gate.thresholds.items() if p.default is p.empty}
    assert required <= set(THRESHOLDS.get(name, {}))
    assert not gate.any_of or set(gate.any_of) & set(THRESHOLDS[name])
    frames = (healthy(name).steps, healthy(name).held_out, *(e.steps for e in healthy(name).earlier.values()))
    assert all(any(field in frame.columns for frame in frames) for field in fields(name)), "a field no test spoils"


def spoil_values(value: Any) -> Any:
    def spoil(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
        return frame.assign(**{c: value for c in columns if c in frame.columns and c != "step"})

    return spoil


SPOILS: dict[str, Any] = {
    "all NaN": spoil_values(math.nan),
    "all infinite": spoil_values(math.inf),
    "constant": spoil_values(3.0),
    "zero": spoil_values(0.0),
    "negative infinity": spoil_values(-math.inf),
    "empty": lambda frame, _: frame.iloc[:0],
    "no columns": lambda frame, _: pd.DataFrame(),
    "one row": lambda frame, _: frame.iloc[:1],
    "a few rows": lambda frame, _: frame.iloc[:9],
    "text": spoil_values("many"),
    "no step": lambda frame, _: frame.drop(columns="step"),
}


# Equal numbers are what resume_parity asks for, and what a model of memory gives; a metric may be constant. "A few
# rows" are all that the held-out set ever gives.
SOUND_AFTER_ALL = {("resume_parity", s) for s in ("constant", "zero", "one row", "a few rows")} | {
    ("loss_near_baseline", "a few rows"),
    ("memory_headroom", "constant"),
    ("within", "constant"),
}


@pytest.mark.parametrize(("name", "spoilt"), sorted({(n, s) for n in NAMES for s in SPOILS} - SOUND_AFTER_ALL))
def test_spoilt_evidence_never_passes(name: str, spoilt: str):
    evidence = damaged(healthy(name), lambda frame: SPOILS[spoilt](frame, fields(name)))
    check = ask(name, evidence)
    assert check.outcome in (Outcome.INVALID, Outcome.FAIL), check.reason
    if spoilt in ("empty", "no columns", "one row", "no step"):
        assert check.outcome is Outcome.INVALID
    assert "the gate broke" not in check.reason
    assert check.reason and check.next_step
    json.dumps(check.to_json(), allow_nan=False)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(NAMES), data=st.data())
def test_no_frame_makes_a_gate_raise_and_no_bad_number_passes(name: str, data: st.DataObject):
    """Any numbers, NaN and infinities among them, in any rows, doubled and shuffled: a Check comes back, sound JSON."""
    rows = data.draw(st.lists(st.integers(0, 109), max_size=60), label="rows spoilt")
    number = st.one_of(st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0]), st.floats(allow_nan=True, width=32))
    value = data.draw(number, label="value")
    column = data.draw(st.sampled_from(sorted({*fields(name), "step", "tokens"})), label="column")
    keep = data.draw(st.integers(0, 110), label="rows kept")
    double = data.draw(st.booleans(), label="doubled")
    seed = data.draw(st.integers(0, 9), label="order")

    def spoil(frame: pd.DataFrame) -> pd.DataFrame:
        if column in frame.columns:
            values = frame[column].to_numpy(dtype=float).copy()
            values[[r for r in rows if r < len(values)]] = value
            frame = frame.assign(**{column: values})
        frame = frame.iloc[:keep]
        frame = pd.concat([frame, frame]) if double else frame
        return frame.sample(frac=1.0, random_state=seed)

    evidence = damaged(healthy(name), spoil)
    check = ask(name, evidence)
    json.dumps(check.to_json(), allow_nan=False)
    if check.outcome is Outcome.PASS:
        numbers = [v for v in (check.estimate, check.limit, *(check.interval or ())) if v is not None]
        assert np.isfinite(numbers).all()
        if name == "finite_loss":
            assert np.isfinite(evidence.steps["loss"]).all()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(NAMES), seed=st.integers(0, 99))
def test_order_and_repetition_of_rows_change_nothing(name: str, seed: int):
    def shuffled(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.concat([frame, frame.iloc[: len(frame) // 2]]).sample(frac=1.0, random_state=seed)

    before, after = (ask(name, e) for e in (healthy(name), damaged(healthy(name), shuffled)))
    assert after.outcome is before.outcome
    if name != "finite_loss":  # which counts records
        assert after.estimate == before.estimate
        assert after.interval == before.interval


def probe(function: Any) -> Check:
    return judge(Gate("probe", function, "end", ("loss",)), Evidence(facts(), pd.DataFrame(), pd.DataFrame()))


def test_whatever_breaks_in_a_gate_is_named_and_invalid():
    def broken(evidence: Evidence, *, limit: float = 2.0) -> Check:
        raise ZeroDivisionError("nothing to divide by")

    check = probe(broken)
    assert check.outcome is Outcome.INVALID
    assert check.reason == "cannot be judged: the gate broke with ZeroDivisionError: nothing to divide by"
    assert check.thresholds == {"limit": 2.0}


def test_a_pass_on_nan_is_no_pass_and_unusable_is_no_traceback():
    def hopeful(evidence: Evidence) -> Check:
        return Check("hopeful", Outcome.PASS, "all is well", estimate=math.nan)

    def refusing(evidence: Evidence) -> Check:
        raise Unusable("no records")

    assert probe(hopeful).outcome is Outcome.INVALID
    assert probe(refusing).reason == "cannot be judged: no records"


def test_the_worst_of_checks_is_the_verdict():
    order = [Outcome.PASS, Outcome.NEED_MORE_DATA, Outcome.INVALID, Outcome.FAIL]
    for i, outcome in enumerate(order):
        assert worst(order[: i + 1]) is outcome
    assert worst([]) is Outcome.INVALID
    assert worst([Outcome.NOT_COMPARABLE, Outcome.PASS]) is Outcome.PASS
    assert worst([Outcome.NOT_COMPARABLE]) is Outcome.NOT_COMPARABLE


def test_a_shadow_is_judged_and_shown_and_does_not_count():
    def refusing(evidence: Evidence, *, limit: float = 2.0) -> Check:
        return Check("refusing", Outcome.FAIL, f"more than {limit}")

    gate = Gate("refusing", refusing, "end", ("loss",))
    evidence = Evidence(facts(), pd.DataFrame(), pd.DataFrame())
    check = judge(gate, evidence, {"shadow": True, "limit": 3.0})
    assert (check.outcome, check.reason, check.thresholds, check.shadow) == (
        Outcome.FAIL, "more than 3.0", {"limit": 3.0}, True,
    )  # fmt: skip
    counted = judge(gate, evidence, {"shadow": False})
    assert enforced([check, counted]) == [counted]


def test_the_example_of_contributing_is_a_gate_that_refuses_what_it_should():
    text = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if block.startswith("@gate"))
    words: dict[str, Any] = {
        "Check": Check,
        "Evidence": Evidence,
        "Outcome": Outcome,
        "Part": float,
        "statistics": statistics,
    }
    exec(code, {**words, "Unusable": Unusable, "frames": frames, "gate": gate})
    example = REGISTRY.pop("input_keeps_up")
    evidence = healthy("finite_loss")
    told = {
        share: evidence.steps.assign(data_seconds=share * evidence.steps["step_seconds"]) for share in (0.01, 0.2, 2.0)
    }
    asked = {share: judge(example, replace(evidence, steps=steps)) for share, steps in told.items()}
    assert [check.outcome for check in asked.values()] == [Outcome.PASS, Outcome.FAIL, Outcome.INVALID]
    sound = told[0.01]
    spoilt = {
        "never measured": evidence.steps.drop(columns="data_seconds", errors="ignore"),
        "all zero": sound.assign(data_seconds=0.0),
        "another unit": sound.assign(data_seconds=1e6 * sound["data_seconds"]),
        "cut short": sound.iloc[:-1],
        "begun late": sound[sound["step"] > sound["step"].min() + 30],
        "two steps": sound.iloc[-2:],
    }
    found = {how: judge(example, replace(evidence, steps=steps)).outcome for how, steps in spoilt.items()}
    assert set(found.values()) == {Outcome.INVALID}, found
