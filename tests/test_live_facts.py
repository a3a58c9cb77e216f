"""Live rules that need no statistics: what is not finite, a job that hangs, and who may stop how often."""

import math

import pytest
from live_records import fed, said, series, span, terms

from tasks.live.hang import Hang

NOT_FINITE = [
    {"loss": math.nan},
    {"loss": None},
    {"loss": math.inf},
    {"loss": "nan"},
    {"grad_norm": None},
    {"grad_norm": -math.inf},
]


@pytest.mark.parametrize("bad", NOT_FINITE, ids=str)
def test_what_is_not_finite_restarts_once_an_attempt(bad):
    records = series(60)
    for at in (30, 31, 40):
        records[at] |= bad
    assert said(fed(records)) == [("finite", "restart", 31)]


def test_an_infinite_norm_is_daily_bread_of_half_precision_only():
    records = series(60)
    records[30]["grad_norm"] = math.inf
    assert said(fed(records, terms(half_precision=True))) == []
    records[30]["loss"] = math.nan
    assert said(fed(records, terms(half_precision=True))) == [("finite", "restart", 31)]


def test_a_repeated_step_that_is_not_finite_again_stops_and_an_old_attempt_s_says_nothing():
    records = series(60)
    state = fed(records[:40])
    bad = {**records[34], "loss": None}
    state.feed([bad], terms(), 0.0)
    state.begin(1.0, 2)
    state.feed([{**bad, "attempt": 1}], terms(), 0.0)
    assert said(state) == [("finite", "restart", 35)]
    state.feed([{**bad, "attempt": 2}], terms(), 0.0)
    assert said(state)[1:] == [("finite", "stop", 35)]
    state.begin(2.0, 3)  # a person tries again, and has all restarts again
    state.feed([{**bad, "attempt": 3}], terms(), 0.0)
    assert said(state)[2:] == [("finite", "restart", 35)]


def test_false_stops_are_shared_among_the_rules_that_may_stop():
    assert terms().false_stop_share == pytest.approx(0.02 / 3)
    assert terms(throughput={"in_canary": "page"}).false_stop_share == pytest.approx(0.02 / 2)
    assert terms(false_stops=0.1, loss={"action": "page"}).false_stop_share == pytest.approx(0.1 / 2)
    nobody = {"throughput": {"in_canary": "page"}, "loss": {"action": "page"}, "spikes": {"action": "page"}}
    assert terms(**nobody).false_stop_share == pytest.approx(0.02)


def test_the_threshold_grows_with_the_planned_stage():
    short, long = (fed(series(600), terms((span("train", 1, steps),))) for steps in (2000, 2_000_000))
    ratio = long.loss.detector["threshold"] - short.loss.detector["threshold"]
    assert ratio == pytest.approx(math.log(1000))
    assert short.loss.detector["threshold"] == pytest.approx(math.log(100 / (0.02 / 3)))


def hang(**said):
    rule = Hang()
    now = [0.0]

    def look(seconds, new=(), running=True):
        now[0] += seconds
        return list(rule.look(new, running, 7, terms(hang=said, emulated=True), now[0]))

    return rule, look


def test_a_hang_is_silence_that_looks_have_witnessed():
    rule, look = hang(at_least_seconds=100.0)
    look(0.0)
    rule.started = True
    assert [len(look(40.0)) for _ in range(6)] == [
        0,
        0,
        0,
        0,
        1,
        0,
    ]  # 25 s a look at most count, and once said is enough
    assert look(40.0, new=[1]) == []
    assert look(1e6) == []


def test_a_hang_s_limit_follows_the_steps_and_learns_what_a_checkpoint_takes():
    rule, look = hang(at_least_seconds=10.0, steps=20.0, start_seconds=500.0)
    assert rule.limit(terms(hang={"start_seconds": 500.0}, start_seconds=60.0)) == 560.0
    for record in series(5):
        rule.see(terms(emulated=True).read({**record, "wall_seconds": 3.0}, 0.0))
    at = terms(hang={"at_least_seconds": 10.0})
    assert rule.limit(at) == 60.0
    look(0.0)
    for _ in range(4):
        look(12.0)
    look(12.0, new=[1])
    assert rule.limit(at) == 120.0
    look(1.0, running=False)  # in a queue nothing hangs
    assert rule.silence == 0.0


def test_modelled_seconds_are_no_wall_seconds():
    record = series(1)[0]
    assert terms(emulated=True).read(record, 0.0).wall_seconds is None
    assert terms(emulated=False).read(record, 0.0).wall_seconds == record["step_seconds"]
