"""Probes: bought once whatever is killed, within the budget, and evidence only when complete."""

import signal
from dataclasses import replace

import pytest
from running import KILL_AT, in_process, look_to_the_end, steps, until

from tasks import measure, probe
from tasks.evidence import evidence
from tasks.gates import Check, Measurement, Outcome
from tasks.launch import launch
from tasks.launchers.processes import marked
from tasks.run import plan_of
from tasks.stage_dir import read_json

WANTED = Measurement("probe", gpus=8, steps=60, gpu_hours=1.0, wrong_gpu_hours=50.0, says="another launch on 8 GPUs")
UNDECIDED = Check("steady_throughput", Outcome.NEED_MORE_DATA, "the interval is wide", measurement=WANTED)
BUY = """
from tasks import measure, probe
from tasks.gates import Check, Measurement, Outcome
wanted = Measurement("probe", gpus=8, steps=60, gpu_hours=1.0, wrong_gpu_hours=50.0, says="another launch on 8 GPUs")
measure.buy(stage, [Check("g", Outcome.NEED_MORE_DATA, "wide", measurement=wanted)], "end")
"""


def taken_in(stage):
    until(lambda: measure.pending(stage) is None)
    return evidence(stage).probes


def test_a_probe_is_bought_and_becomes_evidence_at_its_own_size(begin):
    stage = begin()
    line = measure.buy(stage, [UNDECIDED], "end")
    assert line == "steady_throughput is undecided; a probe of 60 steps on 8 GPUs is queued"
    (found,) = taken_in(stage)
    assert (found.facts.name, found.facts.gpus, found.facts.nodes) == ("gpus_8/gpus_8.1", 8, 1)
    assert list(found.steps["step"]) == list(range(1, 61)) and set(found.steps["phase"]) == {"probe"}
    order = read_json(stage.probe("gpus_8.1").order)
    assert (order["gate"], order["moment"], order["inside"]) == ("steady_throughput", "end", False)
    assert not stage.metrics.exists()  # nothing of it is counted as training


def test_a_smaller_probe_has_the_same_batch_a_gpu(begin):
    stage = begin()
    small = replace(UNDECIDED, measurement=replace(WANTED, gpus=4))
    measure.buy(stage, [small], "end")
    (found,) = taken_in(stage)
    whole = plan_of(stage).facts()
    assert found.facts.throughput_batch_tokens / 4 == whole.throughput_batch_tokens / 8
    orders = read_json(stage.probe("gpus_4.1").config)
    assert (orders["gpus"], orders["spans"][0]["batch_sequences"], orders["spans"][0]["learning_rate"]) == (4, 8, 0.0)
    assert orders["hand_over_step"] is None and orders["start"]["kind"] == "scratch"


def test_two_launches_of_one_size_are_drawn_anew(begin):
    decided = plan_of(begin())
    seeds = {probe.probe_config(decided, "r", name, 8, 60).emulation.seed for name in ("gpus_8.1", "gpus_8.2")}
    assert len(seeds) == 2 and decided.seed not in seeds


def test_the_budget_ends_it(begin):
    stage = begin()
    for number in (1, 2):
        assert measure.buy(stage, [UNDECIDED], "end") is not None
        assert len(taken_in(stage)) == number
    assert measure.buy(stage, [UNDECIDED], "end") is None


@pytest.mark.parametrize(
    "checks",
    [
        [],
        [replace(UNDECIDED, outcome=Outcome.PASS)],
        [replace(UNDECIDED, shadow=True)],
        [replace(UNDECIDED, measurement=None)],
        [replace(UNDECIDED, measurement=replace(WANTED, kind="canary"))],
        [UNDECIDED, Check("finite_loss", Outcome.FAIL, "NaN")],
        [UNDECIDED, Check("finite_loss", Outcome.INVALID, "no records")],
        [replace(UNDECIDED, measurement=replace(WANTED, gpu_hours=51.0))],
    ],
    ids=["none", "decided", "shadow", "no measurement", "canary", "failed", "invalid", "dearer than the error"],
)
def test_nothing_is_bought(checks):
    assert measure.wanted(checks) is None


def test_the_cheapest_is_bought():
    dear = replace(UNDECIDED, gate="dear", measurement=replace(WANTED, gpu_hours=9.0))
    assert measure.wanted([dear, UNDECIDED]) == (UNDECIDED, WANTED)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_killed_while_buying_there_is_one_job(begin, count):
    """Killed after the trainer's orders, after the probe's order, after its job: none or one, never two."""
    stage = begin()
    killing = f"import tasks.measure as m, tasks.probe as p, tasks.stage_dir as s\nafter(s, 'write_whole', {count})"
    done = in_process(stage, BUY, KILL_AT + killing)
    assert done.returncode == -signal.SIGKILL
    if count == 1:  # nothing says yet that it is ordered
        assert measure.pending(stage) is None and stage.probes == []
        measure.buy(stage, [UNDECIDED], "end")
    assert len(taken_in(stage)) == 1
    assert [found.name for found in stage.probes] == ["gpus_8.1"]
    assert (stage.probe("gpus_8.1").metrics.read_text()).count('"kind": "header"') == 1


def test_a_probe_that_fails_is_no_evidence_and_is_spent(begin):
    stage = begin(settings={"fail_at": 30})
    measure.buy(stage, [UNDECIDED], "end")
    assert taken_in(stage) == ()
    assert measure.buy(stage, [UNDECIDED], "end") is not None  # the second and last
    until(lambda: measure.pending(stage) is None)
    assert measure.buy(stage, [UNDECIDED], "end") is None


def test_sizes_inside_the_allocation_are_measured_before_the_stage_trains(begin, configs):
    stages = configs.stages()
    stages[0]["probe_gpus"] = [2, 4]
    stage = begin(stages=stages)
    launch(stage)
    look_to_the_end(stage)
    found = evidence(stage).probes
    assert [p.facts.gpus for p in found] == [2, 4]
    assert steps(stage) == list(range(1, 41))
    first = min(record for record in evidence(stage).steps["time"])
    assert all(float(p.steps["time"].max()) < float(first) for p in found)
    assert measure.buy(stage, [UNDECIDED], "end") is not None  # they are not counted against the budget
    until(lambda: measure.pending(stage) is None)


def test_a_probe_inside_that_fails_stops_nothing(begin, configs):
    stages = configs.stages()
    stages[0]["probe_gpus"] = [4]
    stage = begin(stages=stages, settings={"fail_at": 50})  # a probe has 60 steps, the stage 40
    launch(stage)
    look_to_the_end(stage)
    assert evidence(stage).probes == () and steps(stage) == list(range(1, 41))
    assert "ended with 1; the job goes on without it" in (stage.attempt(1) / "log.txt").read_text()


def test_a_cancelled_stage_takes_its_probe_along(begin, gate_file):
    from tasks.cancel import cancel, mark_person

    stage = begin(settings={**gate_file[1], "wait_at": 20})
    launch(stage)
    measure.buy(stage, [UNDECIDED], "end")
    job = read_json(stage.probe("gpus_8.1").job)["name"]
    until(lambda: marked(job))
    mark_person(stage, "a test", "enough")
    cancel(stage)
    assert marked(job) == [] and measure.pending(stage) is None
