"""Live rules on real jobs: what pages, what stops and frees its GPUs, what restarts, and what does none of it."""

import json
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from conftest import EXPERIMENT
from running import KILL_AT, in_process, look_to_the_end, state_of, steps, until

from tasks.cancel import cancel
from tasks.config.live import Live
from tasks.errors import StageStopped
from tasks.launch import job_of, launch
from tasks.launchers.processes import marked
from tasks.live.replay import judge_live
from tasks.promote import override
from tasks.records import read_metrics
from tasks.run import plan_of
from tasks.stage_dir import read_json
from tasks.tracking.summary import stage_tags
from tasks.watch import look

FAULTY = Path(__file__).parent / "faulty_trainer.py"
TRAINER = {"command": [sys.executable, str(FAULTY), "{stage_dir}"], "capabilities": ["resume", "time", "wall_seconds"]}
GATES = {"finite_loss": {}}


@pytest.fixture
def faulty(begin, tmp_path):
    """Launch a stage of so many steps whose trainer has the planted faults; it waits at ``wait_at`` for a file."""

    def start(steps=60, every=5, live=None, **faults):
        if "wait_at" in faults:
            faults["wait_for"] = str(tmp_path / "go_on")
        stage = {"gpus": 8, "hours": 1, "steps": steps, "batch_sequences": 16, "learning_rate": 0.002, "gates": GATES}
        train = {**EXPERIMENT["train"], "checkpointing": {"every_steps": every}}
        made = begin(stages=[stage], train=train, live=live or {}, trainer={**TRAINER, "settings": faults})
        launch(made)
        return made

    return start


def waiting(stage, step):
    """Wait until the trainer has recorded a step."""
    until(lambda: step in steps(stage))
    return stage


def go_on(tmp_path):
    (tmp_path / "go_on").touch()


def alarms(stage):
    """Return the alarms that looks raised; judged anew from the records alone they are the same."""
    found = [(alarm["rule"], alarm["action"], alarm["step"]) for alarm in read_json(stage.live)["alarms"]]
    again = judge_live(stage, plan_of(stage), Live()).today.alarms
    assert [(alarm.rule, alarm.action, alarm.step) for alarm in again] == [one for one in found if one[0] != "hang"]
    return found


def test_clean_noise_raises_nothing(faulty):
    stage = faulty(steps=2000, every=500)
    assert look_to_the_end(stage).step == 2000
    assert read_json(stage.live)["alarms"] == []
    state = read_json(stage.live)["state"]
    assert (state["throughput"]["detector"] is None, state["loss"]["detector"] is None) == (False, False)  # was armed


def test_a_planted_slow_down_pages_once_and_stops_nothing(faulty, tmp_path):
    stage = waiting(faulty(steps=800, every=100, slow_from=501, slow_by=0.1, wait_at=700), 699)
    said = look(stage)
    (found,) = alarms(stage)
    assert (found[:2], 501 < found[2] <= 601) == (("throughput", "page"), True)
    assert re.search(r"; throughput \(page\): steps take 0\.5\d+ s since step 491, \+\d\.\d%.*: profile it", said.line)
    assert "no phases (data, forward, " in read_json(stage.live)["alarms"][0]["says"]  # this trainer records none
    assert "throughput" not in look(stage).line  # once
    assert stage_tags(stage)["scaleup.live"].startswith("throughput (page): steps take ")
    go_on(tmp_path)
    assert look_to_the_end(stage).step == 800
    assert len(alarms(stage)) == 1
    assert job_of(stage).attempt == 1


def test_a_planted_excess_stops_after_fresh_batches_and_frees_the_gpus_in_the_same_look(faulty, tmp_path):
    stage = waiting(faulty(steps=900, every=50, excess_from=501, excess=0.05, wait_at=800), 799)
    job = job_of(stage)
    with pytest.raises(StageStopped, match=r"live rule loss: the loss lies 0\.0[45]"):
        look(stage)
    assert (state_of(stage), marked(job.name)) == ("cancelled", [])
    cause, found = read_json(stage.cause), read_json(stage.live)["alarms"]
    warning, alarm = (one for one in found if one["rule"] == "loss")
    assert (cause["cause"], cause["rule"]) == ("live", "loss")
    assert (warning["action"], alarm["action"]) == ("note", "stop")
    assert alarm["step"] - warning["step"] >= 40  # two fresh batches
    assert 501 < alarm["step"] <= 651
    assert Path(cause["checkpoint"]).name == f"{cause['checkpoint_step']:08d}.state"
    assert 450 <= cause["checkpoint_step"] <= 500  # the newest from before the excess
    assert Path(cause["checkpoint"]).exists()
    assert "is over" in cancel(stage)


def test_a_person_s_leave_lets_a_stopped_stage_go_on_and_it_pages(faulty, tmp_path):
    stage = waiting(faulty(steps=1000, every=50, excess_from=501, excess=0.05, wait_at=700), 699)
    with pytest.raises(StageStopped):
        look(stage)
    assert override(stage, "another mix of data begins at step 500", "mo")["kind"] == "leave"
    go_on(tmp_path)
    assert launch(stage).attempt == 2
    assert look_to_the_end(stage).step == 1000
    assert {action for rule, action, step in alarms(stage) if rule == "loss" and step > 700} <= {"note", "page"}


def test_nan_restarts_from_the_last_good_checkpoint_and_the_run_finishes(faulty, tmp_path):
    stage = waiting(faulty(nan_at=[33], wait_at=50), 49)
    seen = look(stage)
    assert "; finite (restart): the loss of step 33 is no finite number" in seen.line
    assert (seen.state, seen.done, job_of(stage).attempt) == ("running", False, 2)
    aside = [path.name for path in sorted(stage.set_aside(1).iterdir())]
    assert aside == ["00000035.state", "00000040.state", "00000045.state"]  # kept, and out of the trainer's sight
    go_on(tmp_path)
    assert look_to_the_end(stage).step == 60
    assert steps(stage) == [*range(1, 50), *range(31, 61)]
    assert read_metrics(stage.metrics).steps["loss"].notna().all()
    assert alarms(stage) == [("finite", "restart", 33)]


def test_a_trainer_that_ends_itself_at_a_nan_is_restarted_too(faulty):
    stage = faulty(nan_at=[33], exit_at_nan=True)
    until(lambda: state_of(stage) == "failed")
    assert look(stage).state == "running"
    assert look_to_the_end(stage).step == 60
    assert (job_of(stage).attempt, alarms(stage)) == (2, [("finite", "restart", 33)])


def test_the_same_nan_again_is_no_glitch_and_stops(faulty):
    stage = faulty(nan_at=[33], nan_times=9, exit_at_nan=True)
    until(lambda: state_of(stage) == "failed")
    look(stage)
    until(lambda: state_of(stage) == "failed")
    with pytest.raises(
        StageStopped, match=r"the loss of step 33 is no finite number again: .* no glitch; the last good"
    ):
        look(stage)
    cause = read_json(stage.cause)
    assert (cause["cause"], cause["checkpoint_step"], job_of(stage).attempt) == ("live", 30, 2)


def test_a_nan_at_ever_new_steps_stops_too(faulty):
    stage = faulty(nan_at=[13, 23, 33, 43, 53], exit_at_nan=True, live={"finite": {"restarts": 2}})
    with pytest.raises(StageStopped, match=r"step 33 is no finite number; finite\.restarts: 2 are used up .*13, 23"):
        look_to_the_end(stage)
    assert job_of(stage).attempt == 3


def later(stage, seconds, looks=8):
    """Look again and again, the clock of the looks running ahead by so many seconds in all."""
    now, seen = read_json(stage.watch)["last_look"], None
    for number in range(1, looks + 1):
        seen = look(stage, now=now + seconds * number / looks)
    return seen


def test_a_hang_restarts_and_the_run_finishes(faulty):
    stage = waiting(faulty(hang_at=33), 32)
    look(stage)
    later(stage, 290.0)
    assert job_of(stage).attempt == 1  # a checkpoint or an evaluation may take as long
    later(stage, 60.0)
    assert job_of(stage).attempt == 2
    (alarm,) = read_json(stage.live)["alarms"]
    assert (alarm["rule"], alarm["action"], alarm["step"], alarm["limit"]) == ("hang", "restart", 32, 300.0)
    assert not stage.set_aside(1).exists()  # a machine that hangs has computed the same weights
    assert look_to_the_end(stage).step == 60
    assert steps(stage) == [*range(1, 33), *range(31, 61)]


def test_a_hang_without_end_is_given_up_with_a_sentence(faulty):
    stage = waiting(faulty(hang_at=33, hang_times=9, live={"hang": {"at_least_seconds": 30}}), 32)
    look(stage)
    with pytest.raises(StageStopped, match="3 attempts since step 30 brought no newer good checkpoint"):
        for attempt in range(1, 9):
            until(lambda attempt=attempt: job_of(stage).attempt == attempt and len(steps(stage)) >= 30 + 2 * attempt)
            look(stage)
            later(stage, 40.0)
    assert (job_of(stage).attempt, state_of(stage), read_json(stage.cause)["rule"]) == (4, "cancelled", "hang")


def test_a_job_that_never_begins_is_restarted_after_its_time_to_start(faulty):
    stage = faulty(hang_at=1)
    until(lambda: stage.metrics.exists() and stage.metrics.stat().st_size)
    look(stage)
    later(stage, 1700.0)
    assert job_of(stage).attempt == 1
    later(stage, 200.0)
    assert job_of(stage).attempt == 2
    assert look_to_the_end(stage).step == 60


def test_looks_that_slept_are_no_hang(faulty, tmp_path):
    stage = waiting(faulty(wait_at=33), 32)
    now = look(stage) and read_json(stage.watch)["last_look"]
    for days in (0.01, 0.02):  # a laptop's lid was closed, twice
        look(stage, now=now + days * 86_400)
    assert (alarms(stage), job_of(stage).attempt) == ([], 1)
    go_on(tmp_path)
    assert look_to_the_end(stage).done


@pytest.mark.parametrize("action", ["note", "page", "stop"])
def test_the_yaml_says_what_is_done(faulty, tmp_path, action):
    stage = waiting(faulty(nan_at=[33], wait_at=50, live={"finite": {"action": action}}), 49)
    if action == "stop":
        with pytest.raises(StageStopped, match="live rule finite"):
            look(stage)
        return
    assert f"finite ({action})" in look(stage).line
    go_on(tmp_path)
    assert look_to_the_end(stage).step == 60
    assert (alarms(stage), job_of(stage).attempt) == ([("finite", action, 33)], 1)


BOUNDARIES = {
    "after the alarm is written": "import tasks.live as m\nafter(m, 'write_json', 1)",
    "before it is answered": "import tasks.watch as m\nafter(m, 'write_json', 1)",
    "after it is counted": "import tasks.live.act as m\nafter(m, 'write_json', 1)",
    "after checkpoints are set aside": "import tasks.live.act as m\nafter(m, 'set_aside', 1)",
    "before the relaunch": "import tasks.live.act as m\nafter(m, 'write_json', 2)",
    "after the relaunch": "import tasks.live.act as m\nafter(m, 'relaunch', 1)",
}


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_look_killed_while_it_restarts_and_repeated_makes_one_new_attempt(faulty, tmp_path, boundary):
    stage = waiting(faulty(nan_at=[33], wait_at=50), 49)
    killed = in_process(stage, "from tasks.watch import look\nlook(stage)", KILL_AT + BOUNDARIES[boundary])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    look(stage)
    assert job_of(stage).attempt == 2
    go_on(tmp_path)
    assert look_to_the_end(stage).step == 60
    assert alarms(stage) == [("finite", "restart", 33)]
    assert (job_of(stage).attempt, steps(stage)) == (2, [*range(1, 50), *range(31, 61)])


def test_a_look_loads_no_frames_and_what_it_remembers_is_json(faulty):
    stage = waiting(faulty(steps=500, every=100, wait_at=480), 479)
    text = (
        "import sys\nfrom tasks.watch import look\nlook(stage)\nprint(sorted({'pandas', 'scipy'} & set(sys.modules)))"
    )
    done = in_process(stage, text)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert json.loads(stage.live.read_text())["state"]["furthest"] == 479


def test_ten_times_the_new_records_cost_at_most_twelve_times_the_look(faulty, tmp_path):
    stage = waiting(faulty(steps=200_000, every=200_000, wait_at=11_000), 10_999)
    taken = stage.metrics.read_bytes().splitlines(keepends=True)

    def seconds(count):
        """Return the CPU seconds of the fastest of three looks at so many new records, each from the same state."""
        before = {path: path.read_bytes() if path.exists() else None for path in (stage.live, stage.watch)}
        found = []
        for _ in range(3):
            stage.metrics.write_bytes(b"".join(taken[: 1000 + count]))
            begin = time.process_time()
            look(stage)
            found.append(time.process_time() - begin)
            for path, text in before.items():
                path.write_bytes(text)
        return min(found)

    stage.metrics.write_bytes(b"".join(taken[:1000]))
    look(stage)
    assert seconds(10_000) <= 12 * seconds(1_000)


def test_our_own_trainer_that_diverges_for_good_is_tried_twice_and_stopped(begin, configs):
    configs.cluster(environment={"variables": {"OMP_NUM_THREADS": "1"}})
    model = {"layers": 1, "hidden": 16, "heads": 2, "ffn": 16, "vocabulary": 256}
    recipe = {"model": model, "sequence_length": 16, "precision": "float32", "checkpointing": {"every_steps": 10}}
    first = configs.stages()[0] | {"rehearsal": {"batch_sequences": 16}, "learning_rate": 1e30}
    small = {"processes": 1, "held_out": {"sequences": 16}}
    stage = begin(trainer="scaleup", train=recipe, rehearsal=small, stages=[first])
    launch(stage)
    with pytest.raises(StageStopped, match=r"live rule finite: the .* is no finite number again"):
        until(lambda: look(stage).done, seconds=120)
    assert [alarm["action"] for alarm in read_json(stage.live)["alarms"]] == ["restart", "stop"]
    assert (job_of(stage).attempt, read_json(stage.cause)["checkpoint"]) == (2, None)
    assert not stage.checkpoints.exists()
