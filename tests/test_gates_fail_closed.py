"""Whatever is done to the records: no gate passes on what is spoilt, none breaks, and no NaN reaches JSON.

Every gate meets every spoil. Where a spoil does not matter to a claim, SOUND_AFTER_ALL says why; a new gate is held to
all of them.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gate_evidence import ask, fields, healthy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.errors import RecordsInvalid
from tasks.gates import REGISTRY, Check, EarlierStage, Evidence, Outcome
from tasks.records import read_metrics

NAMES = sorted(REGISTRY)
PHASES = {"replay_parity": ["replay"], "canary": ["canary"]}  # of the steps that a gate reads; the others', train
ON_HELD_OUT = {"resume_parity", "loss_near_baseline"}

Spoil = Callable[[pd.DataFrame, str, st.DataObject], pd.DataFrame]


def rows(frame: pd.DataFrame, gate: str) -> np.ndarray:
    """Positions of the rows that a gate reads."""
    if "phase" not in frame.columns:
        return np.arange(len(frame))
    return np.flatnonzero(frame["phase"].isin(PHASES.get(gate, ["train"])))


def some(frame: pd.DataFrame, gate: str, data: st.DataObject) -> list[int]:
    """Draw one or more rows that a gate reads, all of them where there are few."""
    there = rows(frame, gate).tolist()
    if len(there) <= 3:
        return there
    return data.draw(st.lists(st.sampled_from(there), min_size=1, max_size=20, unique=True), label="rows")


def columns(frame: pd.DataFrame, gate: str) -> list[str]:
    return [name for name in dict.fromkeys(fields(gate)) if name in frame.columns and name != "step"]


def put(value: float) -> Spoil:
    """Write a value into some rows of each field that the gate needs."""

    def spoil(frame: pd.DataFrame, gate: str, data: st.DataObject) -> pd.DataFrame:
        at, frame = some(frame, gate, data), frame.copy()
        for name in columns(frame, gate):
            values = frame[name].to_numpy(dtype=float).copy()
            values[at] = value
            frame[name] = values
        return frame

    return spoil


def scaled(factor: float) -> Spoil:
    """Multiply every number of each field that the gate needs."""

    def spoil(frame: pd.DataFrame, gate: str, data: st.DataObject) -> pd.DataFrame:
        named = [name for name in columns(frame, gate) if name != "time"]  # what the seconds are held against
        return frame.assign(**{name: frame[name].astype(float) * factor for name in named})

    return spoil


def constant(frame: pd.DataFrame, gate: str, data: st.DataObject) -> pd.DataFrame:
    value = data.draw(st.floats(0.1, 5.0), label="constant")
    return frame.assign(**dict.fromkeys(columns(frame, gate), value))


def gaps(frame: pd.DataFrame, gate: str, data: st.DataObject) -> pd.DataFrame:
    inner = rows(frame, gate)[1:-1].tolist()
    lost = data.draw(st.lists(st.sampled_from(inner), min_size=1, max_size=15), label="lost") if inner else []
    return frame.drop(index=frame.index[lost])


def truncated(frame: pd.DataFrame, gate: str, data: st.DataObject) -> pd.DataFrame:
    """Cut the records as a file's end would be: at any byte before the last line is whole."""
    if "phase" not in frame.columns:
        return frame.iloc[:-1]
    lines = [json.dumps({k: v for k, v in row.items() if v == v}) for row in frame.to_dict("records")]
    text = "\n".join(lines) + "\n"
    end = data.draw(st.integers(1, len(text) - 1), label="bytes kept")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        path.write_text(text[:end])
        try:
            return read_metrics(path).steps
        except RecordsInvalid:
            return frame.iloc[:0]  # refused before any gate is asked


SPOILS: dict[str, Spoil] = {
    "NaN": put(math.nan),
    "infinity": put(math.inf),
    "minus infinity": put(-math.inf),
    "1e300": put(1e300),
    "1e-300": put(1e-300),
    "all 1e300": scaled(1e300),
    "all 1e-300": scaled(1e-300),
    "milliseconds": scaled(1000.0),
    "kiloseconds": scaled(0.001),
    "constant": constant,
    "gaps": gaps,
    "truncated": truncated,
    "empty": lambda frame, gate, data: frame.iloc[:0],
    "one row": lambda frame, gate, data: frame.iloc[:1],
}

UNITLESS = {
    "finite_loss": "any finite number is a finite number",
    "stable_loss": "spikes and growth are ratios",
    "resume_parity": "both stages are scaled, and equal numbers stay equal",
    "replay_parity": "both stages are scaled, and equal numbers stay equal",
}
FEW = "only one or two rows of the held-out set are read"
SOUND_AFTER_ALL: dict[tuple[str, str], str] = {
    **{(gate, unit): why for gate, why in UNITLESS.items() for unit in ("milliseconds", "kiloseconds")},
    ("resume_parity", "constant"): "equal losses are what it asks for",
    ("resume_parity", "truncated"): FEW,
    ("loss_near_baseline", "gaps"): FEW,
    ("loss_near_baseline", "kiloseconds"): "a loss that is better passes; too_good asks about it",
    ("memory_headroom", "constant"): "a model of memory gives one number",
    ("within", "constant"): "a metric may be constant",
    ("canary", "truncated"): "it is asked once its last step is recorded, and needs 20",
    ("forecast_efficiency", "gaps"): "the stages before were judged at their own ends",
    ("forecast_efficiency", "truncated"): "the stages before were judged at their own ends",
}


def spoilt(gate: str, spoil: Spoil, data: st.DataObject) -> Evidence:
    """The evidence on which a gate passes, with every frame spoilt that it reads."""
    evidence = healthy(gate)
    earlier = {
        name: EarlierStage(e.facts, _frame(e.steps, gate, spoil, data), _frame(e.held_out, gate, spoil, data))
        for name, e in evidence.earlier.items()
    }
    return replace(
        evidence,
        steps=_frame(evidence.steps, gate, spoil, data),
        held_out=_frame(evidence.held_out, gate, spoil, data),
        earlier=earlier,
    )


def _frame(frame: pd.DataFrame, gate: str, spoil: Spoil, data: st.DataObject) -> pd.DataFrame:
    return spoil(frame, gate, data) if len(frame) else frame


def sound(check: Check) -> Check:
    """Check what holds whatever was asked: the answer is one, and JSON."""
    assert "the gate broke" not in check.reason, check.reason
    text = json.dumps(check.to_json(), allow_nan=False)
    assert Check.from_json(json.loads(text)).outcome is check.outcome
    assert check.reason
    return check


@pytest.mark.parametrize("spoil", sorted(SPOILS))
@pytest.mark.parametrize("gate", NAMES)
def test_no_gate_passes_on_spoilt_records(gate: str, spoil: str) -> None:
    @settings(max_examples=4, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def property_(data: st.DataObject) -> None:
        check = sound(ask(gate, spoilt(gate, SPOILS[spoil], data)))
        seen.append(check.outcome)
        if (gate, spoil) not in SOUND_AFTER_ALL:
            assert check.outcome is not Outcome.PASS, check.reason

    seen: list[Outcome] = []
    property_()
    if (gate, spoil) in SOUND_AFTER_ALL and spoil != "truncated":  # where four cuts may all be deep ones
        assert Outcome.PASS in seen, "an exception that nothing needs"


def test_every_exception_is_of_a_gate_and_a_spoil_that_there_are() -> None:
    assert {gate for gate, _ in SOUND_AFTER_ALL} <= set(NAMES)
    assert {spoil for _, spoil in SOUND_AFTER_ALL} <= set(SPOILS)
    assert all(len(why) > 10 for why in SOUND_AFTER_ALL.values())
    assert len(SOUND_AFTER_ALL) < len(NAMES) * len(SPOILS) / 8


@pytest.mark.parametrize("gate", NAMES)
def test_order_and_repetition_turn_no_refusal_into_a_pass(gate: str) -> None:
    """Rows in any order, some of them twice, answer as the sound records do; spoilt ones too are no better for it."""

    def shuffled(frame: pd.DataFrame, _: str, data: st.DataObject) -> pd.DataFrame:
        again = frame.iloc[: data.draw(st.integers(0, len(frame)), label="twice")]
        return pd.concat([frame, again]).sample(frac=1.0, random_state=data.draw(st.integers(0, 99), label="order"))

    def spoilt_too(frame: pd.DataFrame, gate: str, data: st.DataObject) -> pd.DataFrame:
        return shuffled(put(math.nan)(frame, gate, data), gate, data)

    @settings(max_examples=4, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def property_(data: st.DataObject) -> None:
        assert sound(ask(gate, spoilt(gate, shuffled, data))).outcome is Outcome.PASS
        assert sound(ask(gate, spoilt(gate, spoilt_too, data))).outcome is not Outcome.PASS

    property_()


@pytest.mark.parametrize("factor", [1000.0, 0.001])
@pytest.mark.parametrize("which", ["gpus_8", "gpus_64"])
def test_one_stage_in_another_unit_makes_no_forecast_pass(which: str, factor: float) -> None:
    evidence = healthy("forecast_efficiency")
    one = evidence.earlier[which]
    wrong = replace(one, steps=one.steps.assign(step_seconds=one.steps["step_seconds"] * factor))
    check = sound(ask("forecast_efficiency", replace(evidence, earlier={**evidence.earlier, which: wrong})))
    assert check.outcome is not Outcome.PASS, check.reason


@pytest.mark.parametrize("gate", ["resume_parity", "replay_parity"])
@pytest.mark.parametrize("factor", [1.4427, 0.6931])
def test_one_stage_in_bits_makes_no_parity(gate: str, factor: float) -> None:
    evidence = healthy(gate)
    wrong = replace(
        evidence,
        steps=evidence.steps.assign(loss=evidence.steps["loss"] * factor),
        held_out=evidence.held_out.assign(loss=evidence.held_out["loss"] * factor),
    )
    assert sound(ask(gate, wrong)).outcome is Outcome.FAIL


@settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(gate=st.sampled_from(NAMES), data=st.data())
def test_a_frame_of_anything_is_answered(gate: str, data: st.DataObject) -> None:
    """Columns of any numbers, text, booleans and nothing at all: an answer, and a PASS only with finite numbers."""
    cell = st.one_of(st.floats(), st.integers(-(10**6), 10**6), st.none(), st.booleans(), st.text(max_size=3))

    def anything(frame: pd.DataFrame, _: str, data: st.DataObject) -> pd.DataFrame:
        name: Any = data.draw(st.sampled_from(list(frame.columns)), label="column")
        values = frame[name].astype(object).tolist()
        for at in data.draw(st.lists(st.integers(0, len(values) - 1), max_size=8), label="rows"):
            values[at] = data.draw(cell, label="cell")
        return frame.assign(**{name: values})

    check = sound(ask(gate, spoilt(gate, anything, data)))
    if check.outcome is Outcome.PASS:
        numbers = [v for v in (check.estimate, check.limit, *(check.interval or ())) if v is not None]
        assert np.isfinite(numbers).all()
