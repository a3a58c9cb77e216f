"""Which cases a night has: the matrix multiplied out, what is due, and what fits the budget."""

from datetime import date

import pytest
from nightly_cases import plan_file

from tasks.config.nightly import load_nightly
from tasks.config.nightly_cases import Price, all_cases, choose, due

MONDAY, TUESDAY = date(2026, 12, 7), date(2026, 12, 8)


def test_a_matrix_is_every_combination_each_with_a_name(configs):
    configs.cluster("there")
    block = {"experiments": ["tiny"], "clusters": ["here", "there"], "stages": ["gpus_8"], "cadence": "nightly"}
    plan_file(configs.root, {**block, "changes": {"base": {}, "quick": {"seed": 3}}, "seeds": [1, 2]})
    names = [case.name for case in all_cases(load_nightly())]
    assert len(names) == len(set(names)) == 8 and names[0] == "tiny-here-gpus_8-base-seed_1"
    case = all_cases(load_nightly())[-1]
    assert (case.plan().cluster.name, case.plan().name, case.plan().seed) == ("there", "gpus_8", 2)
    assert case.owner == "we"


def test_the_shipped_plan_is_sound():
    assert [case.name for case in all_cases(load_nightly())][:1] == ["gpt_stdlib-laptop"]


@pytest.mark.parametrize(
    ("day", "release", "names"),
    [(TUESDAY, False, ["a"]), (MONDAY, False, ["a", "b"]), (TUESDAY, True, ["a", "b", "c"])],
)
def test_what_is_due(configs, day, release, names):
    blocks = [
        {"experiments": ["tiny"], "changes": {name: {}}, "cadence": cadence}
        for name, cadence in (("a", "nightly"), ("b", "weekly"), ("c", "release"))
    ]
    plan_file(configs.root, *blocks)
    assert [case.name[-1] for case in due(load_nightly(), day, release=release)] == names


def test_the_cheapest_and_most_telling_fit_and_the_rest_is_said(configs):
    plan_file(configs.root, {"experiments": ["tiny"], "changes": {n: {} for n in "abc"}, "cadence": "nightly"},
              budget={"hours": 1, "gpu_hours": 10})  # fmt: skip
    loaded = load_nightly()
    cases = all_cases(loaded)
    prices = {"tiny-a": Price(0.8, 0.0), "tiny-b": Price(0.3, 4.0), "tiny-c": Price(0.1, 7.0)}
    chosen = choose(loaded, cases, prices, {})
    assert chosen.run[0] == "tiny-b" and "tiny-c" not in chosen.run
    assert chosen.left_out["tiny-c"] == (
        "it needs 0.1 h and 7 GPU-hours; of the night's 1 h and 10 GPU-hours 0.7 and 6 are left"
    )
    late = choose(loaded, cases, prices, {"tiny-c": 5, "tiny-a": 1, "tiny-b": 1})
    assert late.run[0] == "tiny-c"  # left out for five nights, it goes first
