"""Live rules as streams: what each says of planted series, and that looks of any size say the same."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_records import fed, said, series, span, terms

from tasks.live.alarms import NOTES_KEPT, Alarm, with_new
from tasks.live.expected import Expected, Known, flat, from_curve, from_forecast
from tasks.live.state import LiveState
from tasks.statistics.detection import spikes as marked


def test_clean_noise_is_silent():
    assert said(fed(series(4000))) == []


@pytest.mark.parametrize(
    ("slower", "from_step", "alarm"),
    [
        (1.0, 21, None),
        (1.03, 21, None),  # of the forecast's slow end, 2% are let pass, and one batch alone says nothing
        (1.1, 21, ("throughput", "stop", 70)),  # ten steps of warm-up, two batches: inside the canary
        (1.1, 101, ("throughput", "page", 130)),  # the batch in which it began is slow enough
    ],
)
def test_a_stage_without_a_level_of_its_own_is_held_against_its_forecast(slower, from_step, alarm):
    known = Known(flat(), slowest=(16, 0.5 * 1.02))
    records = series(200, seconds=0.5)
    for record in records:
        record["step_seconds"] *= slower if record["step"] >= from_step else 1.0
    found = said(fed(records, terms(known=lambda fingerprint, start: known), chunk=7))
    assert found == ([] if alarm is None else [alarm])
    assert said(fed(records, terms(known=lambda fingerprint, start: Known(flat(), slowest=(8, 0.1))))) == []
    emulated = fed(records, terms(known=lambda fingerprint, start: known, emulated=True)).alarms
    assert all("(modelled)" in one.says for one in emulated) and len(emulated) == (alarm is not None)


STRANGE = st.sampled_from([float("nan"), math.inf, -math.inf, None, 1e300, -1e300, 0.0, "x", True, 10**400])


@st.composite
def histories(draw):
    """Records with shifts, spikes, strange values, resumed attempts that repeat steps, and other kinds between."""
    count = draw(st.integers(450, 900))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    at = draw(st.integers(0, count))
    loss = 3 + 0.02 * random.normal(size=count) + draw(st.sampled_from([0.0, 0.05, 1.0])) * (np.arange(count) >= at)
    slow = 1 + draw(st.sampled_from([0.0, 0.05, 0.2])) * (np.arange(count) >= draw(st.integers(0, count)))
    records = series(
        count, seed=draw(st.integers(0, 99)), loss=0.0, step_seconds=0.5 * slow * random.lognormal(0, 0.01, count)
    )
    for record, value in zip(records, loss.tolist(), strict=True):
        record["loss"] = value
    for place in draw(st.lists(st.integers(0, count - 1), max_size=5)):
        records[place]["loss"] = records[place]["loss"] + 1.0
    for place in draw(st.lists(st.integers(0, count - 1), max_size=3)):
        records[place][draw(st.sampled_from(["loss", "step_seconds", "tokens", "grad_norm", "step"]))] = draw(STRANGE)
    for place in draw(st.lists(st.integers(0, count - 1), max_size=2)):
        again = [dict(record) for record in records[max(0, place - draw(st.integers(0, 60))) : place + 1]]
        records[place:place] = [*again, {"kind": "header", "fingerprint": "f"}]
    records.insert(0, {"kind": "held_out", "at": "start", "tokens": 900, "loss": 3.0})
    return records


@settings(max_examples=25, deadline=None)
@given(records=histories(), sizes=st.lists(st.integers(1, 200), min_size=1, max_size=12))
def test_looks_of_any_size_raise_the_same_alarms_as_one(records, sizes):
    whole = fed(records)
    state, at, turn = LiveState(begun=1.0), 0, 0
    while at < len(records):
        size = sizes[turn % len(sizes)]
        state, at, turn = fed(records[at : at + size], state=state), at + size, turn + 1
    assert state.to_json() == whole.to_json()


def test_a_step_repeated_after_a_resume_does_not_count_twice():
    records = series(1000)
    again = fed([*records[:700], {"kind": "header"}, *records[650:]])
    assert again.furthest == 1000
    assert again.spikes.recent == fed(records).spikes.recent
    assert said(again) == []


def test_a_slow_down_pages_after_the_canary_and_stops_in_it():
    slow = np.where(np.arange(900) < 600, 0.5, 0.55) * (1 + 0.015 * np.random.default_rng(1).normal(size=900))
    (page,) = fed(series(900, step_seconds=slow)).alarms
    assert (page.rule, page.action, 600 < page.step <= 700) == ("throughput", "page", True)
    assert page.value > page.limit > 0.5
    all_canary = terms((span("canary", 1, 2000),))
    (stop,) = fed(series(900, step_seconds=slow), all_canary).alarms
    assert (stop.rule, stop.action) == ("throughput", "stop")
    allowed = terms((span("canary", 1, 2000),), leave=True)
    assert fed(series(900, step_seconds=slow), allowed).alarms[0].action == "page"


def test_measured_noise_between_launches_widens_the_bar_and_never_narrows_it():
    slow = np.where(np.arange(900) < 600, 0.5, 0.53) * (1 + 0.005 * np.random.default_rng(1).normal(size=900))
    for launch_sd, pages in ((0.0, 1), (0.005, 1), (0.04, 0)):
        measured = Known(flat(), launch_sd=launch_sd)
        found = said(fed(series(900, step_seconds=slow), terms(known=lambda *_, measured=measured: measured)))
        assert [rule for rule, _, _ in found] == ["throughput"] * pages


def test_another_batch_is_another_level():
    two = (span("train", 1, 800, 16), span("train", 801, 3200, 32))
    seconds = np.where(np.arange(1600) < 800, 0.5, 1.0) * (1 + 0.01 * np.random.default_rng(2).normal(size=1600))
    assert said(fed(series(1600, step_seconds=seconds), terms(two))) == []


def test_a_second_slow_down_after_a_recovery_is_news():
    at = np.arange(1600)
    slow = np.where(((at >= 600) & (at < 800)) | (at >= 1200), 0.6, 0.5) * (
        1 + 0.01 * np.random.default_rng(3).normal(size=1600)
    )
    found = fed(series(1600, step_seconds=slow)).alarms
    assert [(alarm.rule, alarm.step // 100) for alarm in found] == [("throughput", 6), ("throughput", 12)]


def test_a_loss_excess_is_confirmed_by_fresh_batches_and_a_passing_one_is_not():
    at = np.arange(1200)
    random = 0.005 * np.random.default_rng(4).normal(size=1200)
    stays = fed(series(1200, loss=3 + 0.03 * (at >= 700) + random, loss_sd=0), terms(spikes={"z": 50.0}))
    assert [action for _, action, _ in said(stays)] == ["note", "stop"]
    warning, stop = stays.alarms
    assert 700 < warning.step < stop.step <= 900
    assert stop.last_good_step <= 701
    goes = fed(series(1200, loss=3 + 0.03 * ((at >= 700) & (at < warning.step)) + random, loss_sd=0), terms())
    assert "stop" not in {action for _, action, _ in said(goes)}


def test_the_loss_is_held_against_what_is_expected_of_these_tokens():
    """A loss that stops falling where a reference curve goes on is in excess; on a flat expectation it is not."""
    at = np.arange(2000)
    stuck = 3.0 - 0.1 * np.log((np.minimum(at, 600) + 1000) / 1000) + 0.003 * np.random.default_rng(5).normal(size=2000)
    tokens = np.geomspace(1000, 4e6, 60)
    curve = from_curve(tokens.tolist(), (9.0 - 0.1 * np.log(tokens + 1e6)).tolist())
    records = series(2000, loss=stuck, loss_sd=0)
    assert said(fed(records, terms())) == []
    found = fed(records, terms(known=lambda fingerprint, start: Known(curve))).alarms
    assert [(alarm.rule, alarm.action) for alarm in found] == [("loss", "note"), ("loss", "stop")]
    assert "the reference curve" in found[-1].says


def test_what_is_expected_comes_of_a_sound_curve_or_a_forecast_s_upper_end():
    assert from_curve([10.0, 20.0], [3.0, 2.0]).at(math.sqrt(200)) == pytest.approx(2.5)
    assert from_curve([10.0, 20.0], [3.0, 2.0]).at(1e9) == 2.0
    falling, not_finite, text = ([2.0, 1.0], [3.0, 2.0]), ([1.0, 2.0], [3.0, math.nan]), ([1, 2], ["3", 2])
    for tokens, losses in (([], []), ([1.0], [3.0]), falling, not_finite, text):
        assert from_curve(tokens, losses) is None
    forecast = {"held_out_loss": {"median": 2.0, "high": 2.2, "tokens": 100.0}}
    assert from_forecast(forecast, (10.0, 3.0)).at(100.0) == 2.2
    assert from_forecast(forecast, None) is None
    assert from_forecast({"held_out_loss": {"median": None, "high": None, "tokens": 100}}, (10.0, 3.0)) is None
    long = from_curve(list(range(1, 10_001)), [1.0 / n for n in range(1, 10_001)])
    assert len(long.points) <= 200
    assert Expected.from_json(json.loads(json.dumps(long.to_json()))) == long
    assert flat().at(5.0) == flat().at(5e9)


def test_spikes_are_those_of_the_statistic_and_three_within_ten_steps_are_a_page():
    records = series(400)
    for at in (150, 300, 303, 306, 309):
        records[at]["loss"] += 0.5
    assert said(fed(records)) == [("spikes", "note", 151), ("spikes", "note", 301), ("spikes", "page", 307)]
    everywhere = np.flatnonzero(marked([record["loss"] for record in records])) + 1
    assert set(everywhere) >= {151, 301, 304, 307, 310}


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), tail=st.floats(2.1, 5.0))
def test_the_stream_s_spikes_equal_those_of_the_array_function(seed, tail):
    """Heavy tails bring z near its threshold often; the first 64 steps are left out on purpose."""
    values = np.random.default_rng(seed).standard_t(tail, size=400)
    records = series(400, loss=values, loss_sd=0)
    rules = {"spikes": {"burst": 1000, "action": "note"}, "loss": {"action": "note"}}
    ours = set()
    for record in records:
        record["phase"] = "train"
    state = LiveState(begun=1.0)
    for record in records:
        before = list(state.spikes.marks)
        state.feed([record], terms(**rules), 0.0)
        ours |= set(state.spikes.marks) - set(before)
    assert ours == {step + 1 for step in np.flatnonzero(marked(values)) if step >= 64}


def test_a_loss_that_left_stops_with_patience_and_a_recovery_does_not():
    at = np.arange(600)
    gone = fed(series(600, loss=3 + 2.0 * (at >= 300), loss_sd=0.01), terms(loss={"action": "note"}))
    rise = next(alarm for alarm in gone.alarms if alarm.action == "stop")
    assert (rise.rule, rise.step, rise.window) == ("spikes", 330, (301, 330))
    slow = fed(series(600, loss=3 + 0.3 * (at >= 300), loss_sd=0.01), terms(loss={"action": "note"}))
    assert [alarm.step for alarm in slow.alarms if alarm.action == "stop"] == [350]
    back = fed(series(600, loss=3 + 2.0 * ((at >= 300) & (at < 329)), loss_sd=0.01), terms(loss={"action": "note"}))
    assert [alarm.action for alarm in back.alarms if alarm.rule == "spikes"] == ["note", "page"]


def test_an_action_is_the_most_that_a_rule_does():
    records = series(600, loss=3 + 2.0 * (np.arange(600) >= 300), loss_sd=0.01)
    mild = fed(records, terms(spikes={"action": "note"}, loss={"action": "note"}))
    assert {alarm.action for alarm in mild.alarms} == {"note"}


def test_of_notes_the_newest_are_kept_and_all_that_was_done():
    note, page = (Alarm("spikes", action, 1, 0.0, "x") for action in ("note", "page"))
    known = with_new([page], [note] * (NOTES_KEPT + 50))
    assert (known[0], len(known)) == (page, NOTES_KEPT + 1)
    assert Alarm.from_json(json.loads(json.dumps(page.to_json()))) == page


def test_a_state_stays_small_however_long_the_stage():
    short, long = (len(json.dumps(fed(series(count)).to_json())) for count in (1000, 4000))
    assert long < 1.2 * short
