"""What frees a stage's GPUs: a recorded cause, and nothing else."""

import pytest
from running import look_to_the_end, state_of

from tasks.cancel import cancel, mark_person, reap, record_cause
from tasks.errors import StageStopped
from tasks.launch import job_of, launch
from tasks.launchers.processes import marked
from tasks.stage_dir import read_json
from tasks.watch import look


def test_without_a_cause_the_job_lives_on(running):
    stage = running()
    said = cancel(stage)
    assert "is left as it is (running): no cause to end it is recorded" in said
    assert "within 6 hours" in said
    assert state_of(stage) == "running"


def test_a_failed_gate_is_a_cause(running):
    stage = running()
    record_cause(stage, "gate", "canary says FAIL")
    assert cancel(stage).endswith("is cancelled (gate): canary says FAIL")
    assert marked(job_of(stage).name) == []


def test_a_person_ends_a_stage(running):
    stage = running()
    mark_person(stage, "mo", "wrong data")
    assert cancel(stage).endswith("is cancelled (person): mo: wrong data")
    assert marked(job_of(stage).name) == []
    with pytest.raises(StageStopped, match=r"gpus_8 was stopped \(person\): mo: wrong data"):
        look(stage)
    assert "is over" in cancel(stage)  # twice is once


def test_the_first_cause_stays(begin):
    stage = begin()
    record_cause(stage, "hours", "too long")
    assert mark_person(stage, "mo", "later")["cause"] == "hours"


def test_cancel_of_what_was_never_launched(begin):
    assert cancel(begin()) == "gpus_8 was never launched; nothing to cancel"


def test_after_a_cause_a_launch_begins_the_next_attempt(running, gate_file):
    stage = running()
    mark_person(stage, "mo", "not now")
    cancel(stage)
    gate_file[0].touch()
    assert launch(stage).attempt == 2
    assert not stage.cause.exists()
    assert read_json(stage.attempt(1) / "cause.json")["cause"] == "person"
    assert look_to_the_end(stage).step == 40


def test_orphans_are_reaped_after_their_hours_and_not_before(running):
    stage = running()
    look(stage)
    now = read_json(stage.watch)["last_look"]
    assert reap(now + 5.9 * 3600) == []
    assert state_of(stage) == "running"
    (line,) = reap(now + 6.1 * 3600)
    assert "nobody has looked at it for 6.1 hours" in line
    assert state_of(stage) == "cancelled"
    assert reap(now + 7 * 3600) == []
