"""The judgement of a series of nights: literal series, and what must, or must not, be suspected of the last one."""

import itertools

import numpy as np
import pytest

from tasks.config.nightly import Rule
from tasks.nightly import baseline, incidents, points
from tasks.nightly.judge import (
    SERIES,
    agrees,
    confirmed,
    holds_for_good,
    night_value,
    recovered,
    suspicion,
    worse,
)
from tasks.nightly.points import Point
from tasks.nightly.verdict import judge

SPEED, LOSS, STALL = (SERIES[name] for name in ("tokens_per_gpu_second", "held_out_loss", "checkpoint_stall_seconds"))
QUIET = [100.0, 101, 99.5, 100.4, 99.2, 100.8, 99.9, 100.2, 100.9, 99.3, 100.1, 99.8, 100.6, 99.6, 100.3]


def test_a_fall_is_suspected_on_its_second_night_and_is_the_worse_level():
    assert suspicion([*QUIET, 94.8], SPEED) is None  # one bad night is no new level
    found = suspicion([*QUIET, 94.8, 95.1], SPEED)
    assert found is not None and (found.first, found.kind) == (len(QUIET), "change")
    assert found.before == pytest.approx(np.mean(QUIET)) and found.change == pytest.approx(-0.0511, abs=1e-3)
    assert worse(found, SPEED) and not worse(found, LOSS)


def test_a_rise_of_speed_is_an_improvement_and_of_loss_is_not():
    found = suspicion([*QUIET, 105.1, 104.8], SPEED)
    assert found is not None and not worse(found, SPEED) and worse(found, LOSS)
    assert not holds_for_good(found, len(QUIET) + 2, 1e-3)
    assert holds_for_good(found, len(QUIET) + 10, 1e-3) == (found.p_value <= 1e-4)


@pytest.mark.parametrize("values", [QUIET, [*QUIET, 99.0, 98.9], QUIET[:7], [], [5.0] * 30])
def test_noise_small_moves_and_short_pasts_are_not_suspected(values):
    assert suspicion(values, SPEED) is None


def test_the_return_from_a_chance_rise_is_no_fall():
    assert suspicion([*QUIET, 103.4, 103.2, 103.3, 103.1, *QUIET[:4]], SPEED) is None
    assert suspicion([*QUIET, 103.4, 103.2, 103.3, 103.1, 95, 95.2, 94.9], SPEED) is not None


def test_what_was_accepted_is_no_news_and_a_fall_after_it_is():
    fallen = [*QUIET, *(0.94 * value for value in QUIET[:6])]
    assert suspicion(fallen, SPEED).first == len(QUIET)
    assert suspicion(fallen, SPEED, known=len(QUIET)) is None
    again = suspicion([*fallen, *(0.88 * value for value in QUIET[:4])], SPEED, known=len(QUIET))
    assert again.first == len(fallen) and again.before == pytest.approx(94, abs=0.3)


def test_many_small_steps_that_no_night_shows_are_drift():
    rng = np.random.default_rng(3)
    sliding = 100 * (1 - 0.0009 * np.arange(80)) * (1 + 0.004 * rng.normal(size=80))
    kinds = [found.kind for end in range(40, 81) if (found := suspicion(sliding[:end], SPEED))]
    assert "drift" in kinds


def test_a_constant_loss_that_moves_by_more_than_counts_is_found_and_by_less_is_not():
    assert suspicion([2.4] * 12 + [2.42] * 2, LOSS).change == pytest.approx(0.00833, rel=1e-3)
    assert suspicion([2.4] * 12 + [2.405] * 2, LOSS) is None


def test_milliseconds_do_not_count():
    assert suspicion([0.008] * 12 + [0.016] * 3, STALL) is None
    assert suspicion([0.8] * 12 + [1.6] * 3, STALL) is not None


def test_two_of_three_measurements_confirm_and_their_median_is_the_night():
    found = suspicion([*QUIET, 94.8, 95.1], SPEED)
    assert agrees(95, found.before, found.after) and not agrees(99, found.before, found.after)
    assert confirmed(found, [95.1, 99.9, 95.4]) and not confirmed(found, [95.1, 99.9, 100.2])
    assert not confirmed(found, [95.1])  # both reruns died
    assert night_value([95.1, 99.9, 100.2]) == 99.9


def test_an_incident_is_over_after_three_nights_in_a_row():
    assert not recovered([95, 100, 100.2], 100, 95)
    assert not recovered([100, 100.2], 100, 95)
    assert recovered([95, 100, 100.2, 99], 100, 95)


def a_point(night, value, attempt=0, **changes):
    values = {"tokens_per_gpu_second": value} if value is not None else {}
    said = {"hardware": "h", "environment": "e", "run": "x/y", "failed": "" if values else "it died"}
    return Point(case="c", night=night, attempt=attempt, values=values, **{**said, **changes})


def nights(values, **changes):
    return [a_point(f"2026-10-{day:02d}", value, **changes) for day, value in zip(itertools.count(1), values)]


def speed_of(past, *tonight, rule=None):
    judged = judge(
        past, [a_point("2026-11-01", value, attempt) for attempt, value in enumerate(tonight)], rule or Rule()
    )
    return {one.series: one for one in judged}["tokens_per_gpu_second"]


FALLEN = [*QUIET, 95.2]


@pytest.mark.parametrize(
    ("past", "tonight", "state"),
    [
        (nights(QUIET[:5]), [100], "learning"),
        (nights(QUIET), [100], "steady"),
        (nights(FALLEN), [95.0], "suspect"),
        (nights(FALLEN), [95.0, 95.3, 99.9], "alarm"),
        (nights(FALLEN), [95.0, 100.1, 99.9], "unconfirmed"),
        (nights([*QUIET, 105]), [105.2], "improved"),
        (nights([*QUIET, 105]), [105.2, 100.1, 99.8], "unconfirmed"),
        (nights(FALLEN, hardware="other"), [95.0], "learning"),
        (nights(FALLEN, environment="other"), [95.0], "learning"),
        (nights(FALLEN), [None, 95.0, 95.3], "alarm"),
        (nights(FALLEN), [None, 95.0, 99.9], "unconfirmed"),
        (nights(FALLEN), [None], "missing"),
    ],
)
def test_states_of_a_night(scaleup_home, past, tonight, state):
    found = speed_of(past, *tonight)
    assert found.state == state, found.says
    if state == "alarm":
        assert (found.first_bad, found.last_good) == ("2026-10-16", "2026-10-15")
        assert (
            "moved from 100" in found.says and "since 2026-10-16" in found.says and "runs tonight agree" in found.says
        )


def test_without_a_rerun_the_answer_falls_at_the_stricter_p(scaleup_home):
    rule = Rule(reruns=0)
    assert speed_of(nights([*QUIET, 95.2]), 95.0, rule=rule).state == "alarm"
    weak = nights([*(100 + 1.8 * (value - 100) for value in QUIET), 96.6])
    assert speed_of(weak, 96.9).state == "suspect" and speed_of(weak, 96.9).p_value > 1e-4
    assert speed_of(weak, 96.9, rule=rule).state == "steady"


def test_imported_breaks_are_no_news(scaleup_home):
    past = nights([*QUIET[:8], *(0.9 * value for value in QUIET[:9])], run="")
    assert speed_of(past, 90.3).state == "steady"
    assert speed_of(past, 80).state == "steady"  # the first night of a fall
    assert speed_of([*past, a_point("2026-10-30", 80.2)], 80).state == "suspect"


def test_nights_of_an_incident_enter_no_baseline_and_recovery_closes_it(scaleup_home):
    past = [*nights(FALLEN), a_point("2026-10-20", 95.4)]
    facts = {"first_bad": "2026-10-16", "last_good": "2026-10-15", "before": 100.1, "after": 95.2, "says": "fell"}
    assert incidents.opened("c", SPEED.name, "2026-10-20", facts)
    assert not incidents.opened("c", SPEED.name, "2026-10-21", facts)  # one a series
    assert speed_of(past, 95.1).state == "open"
    back = [*past, a_point("2026-10-21", 100.2), a_point("2026-10-22", 99.8)]
    assert speed_of(back, 95.0).state == "open" and "2 of 3" in speed_of(back[:-1], 100.0).says
    assert speed_of(back, 100.0).state == "recovered"
    incidents.close("c", SPEED.name, how="recovered", good_from="2026-10-21")
    after = speed_of(back, 100.0)
    assert after.state == "steady" and after.before == pytest.approx(np.mean([*QUIET[-8:], 100.2, 99.8]), rel=1e-6)


def test_a_new_level_is_accepted_with_a_name_a_reason_and_a_difference(scaleup_home):
    past = [*nights(FALLEN), a_point("2026-10-20", 95.4)]
    for one in past:
        points.write(one)
    facts = {"first_bad": "2026-10-16", "last_good": "2026-10-15", "before": 100.0, "after": 95.3, "says": "fell"}
    incidents.opened("c", SPEED.name, "2026-10-20", facts)
    said = baseline.accept(f"c/{SPEED.name}", "the new tokenizer costs 5%", by="ada")
    assert "the baseline is 95.3 tokens/s/GPU from 2026-10-16 on; it was 100 (-4.70%)" in said
    (move,) = baseline.moves("c", SPEED.name)
    assert (move["by"], move["because"], move["difference"]) == (
        "ada",
        "the new tokenizer costs 5%",
        pytest.approx(-4.7),
    )
    assert incidents.open_of("c", SPEED.name) is None
    assert speed_of(past, 95.1).state == "steady" and speed_of(past, 95.1).before == pytest.approx(95.3)
