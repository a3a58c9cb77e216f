"""Looking at a running stage: what a look sees, what ends a stage, and what must not."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from running import KILL_AT, in_process, look_to_the_end, state_of, steps, until

from tasks import tracking
from tasks.cancel import cancel, mark_person
from tasks.errors import LaunchFailed, RecordsInvalid, StageStopped
from tasks.launch import job_of, launch, relaunch
from tasks.launchers.processes import marked
from tasks.promote import override, promote
from tasks.run import plan_of
from tasks.stage_dir import read_json, write_json
from tasks.watch import look, timeout_seconds

DAY = 86_400.0


def test_a_look_says_how_far_the_stage_is(running, gate_file):
    stage = running()
    seen = look(stage)
    assert (seen.done, seen.state, seen.step, seen.last_step) == (False, "running", 19, 40)
    assert 30.0 < seen.tokens_per_gpu_second < 34.0
    assert seen.line.startswith("gpus_8 running: step 19 of 40, loss ")
    gate_file[0].touch()
    assert look_to_the_end(stage).step == 40
    assert look(stage).done  # again, after the end


def test_records_are_read_once_each(running):
    stage = running()
    look(stage)
    first = read_json(stage.watch)
    look(stage)
    second = read_json(stage.watch)
    assert first["new"] >= 20  # the header, the held-out row, 19 steps
    assert second["new"] == 0
    assert second["offset"] == first["offset"] == stage.metrics.stat().st_size


def test_looks_at_once_take_turns(running):
    stage = running()
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(look, [stage] * 4))
    assert {s.step for s in seen} == {19}
    assert read_json(stage.watch)["new"] == 0


def test_a_stage_never_launched_is_named(begin):
    with pytest.raises(LaunchFailed, match=r"has no job\.json: the stage was never launched"):
        look(begin())


def test_a_failed_job_is_reported_with_its_log_s_last_lines(begin):
    stage = begin(settings={"fail_at": 13})
    launch(stage)
    until(lambda: state_of(stage) == "failed")
    with pytest.raises(StageStopped) as stopped:
        look(stage)
    lines = str(stopped.value).splitlines()
    assert lines[0] == "gpus_8 ended before its time: the program ended with exit code 1"
    assert lines[1] == f"{stage.attempt(1) / 'log.txt'} ends with:"
    assert "  the loss function is not defined here" in lines
    cause = read_json(stage.cause)
    assert (cause["cause"], cause["state"], cause["exit_code"]) == ("job_over", "failed", 1)
    with pytest.raises(StageStopped, match="was stopped"):
        look(stage)


def test_a_trainer_that_exits_0_too_early_has_not_succeeded(begin):
    stage = begin(trainer={"command": ["python", "-c", "pass", "{stage_dir}"], "capabilities": ["phase"]})
    launch(stage)
    until(lambda: state_of(stage) == "succeeded")
    with pytest.raises(StageStopped, match="the trainer exited 0 after step 0, before its last, 40"):
        look(stage)


def test_a_lost_job_is_repaired_and_ends_well(running, gate_file):
    stage = running()
    first = job_of(stage)
    os.kill(json.loads((Path(first.folder) / "supervisor.json").read_text())["pid"], signal.SIGKILL)
    until(lambda: state_of(stage) == "lost")
    seen = look(stage)
    assert not seen.done
    assert job_of(stage).attempt == 2
    gate_file[0].touch()
    assert look_to_the_end(stage).step == 40
    assert steps(stage) == [*range(1, 20), *range(16, 41)]
    assert marked(first.name) == []


def test_an_attempt_that_is_over_before_the_look_that_began_it_is_judged_by_the_next(running, gate_file, monkeypatch):
    stage = running()
    os.kill(read_json(stage.attempt(1) / "supervisor.json")["pid"], signal.SIGKILL)
    until(lambda: state_of(stage) == "lost")
    gate_file[0].touch()

    def slow(*given):
        fresh = relaunch(*given)
        until(lambda: state_of(stage) == "succeeded")
        return fresh

    monkeypatch.setattr("tasks.watch.relaunch", slow)
    first = look(stage)
    assert (first.done, first.state) == (False, "running")
    second = look(stage)
    assert (second.done, second.step) == (True, 40)


def test_a_job_lost_again_and_again_is_given_up(running):
    stage = running()
    look(stage)
    write_json(stage.watch, read_json(stage.watch) | {"repairs": 3})
    supervisor = json.loads((stage.attempt(1) / "supervisor.json").read_text())
    os.kill(supervisor["pid"], signal.SIGKILL)
    until(lambda: state_of(stage) == "lost")
    with pytest.raises(StageStopped, match="it was lost 4 times without a newer checkpoint"):
        look(stage)


@pytest.mark.parametrize("boundary", ["'write_json', 1", "'write_json', 2", "'follow', 1"])
def test_a_look_killed_at_any_moment_harms_nothing(running, gate_file, boundary):
    stage = running()
    die = f"{KILL_AT}import tasks.watch\nafter(tasks.watch, {boundary})"
    killed = in_process(stage, "from tasks.watch import look\nwhile True: look(stage)", die)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert state_of(stage) == "running"
    gate_file[0].touch()
    assert look_to_the_end(stage).step == 40
    assert job_of(stage).attempt == 1


def test_an_exception_inside_a_look_leaves_the_job_alone(running, gate_file, monkeypatch):
    stage = running()
    stage.watch.mkdir()  # as bad as a full disk: what is remembered can be neither read nor written
    with pytest.raises(OSError):
        look(stage)
    said = cancel(stage)
    assert "is left as it is (running): no cause to end it is recorded" in said
    assert "within 6 hours" in said
    assert state_of(stage) == "running"
    assert launch(stage) == job_of(stage)  # found again
    stage.watch.rmdir()
    gate_file[0].touch()
    assert look_to_the_end(stage).done


def test_records_that_break_the_contract_are_named_and_leave_the_job_alone(running):
    stage = running()
    with stage.metrics.open("a") as file:
        file.write("no json\n{}\n")
    with pytest.raises(RecordsInvalid, match="is not a JSON object: 'no json'"):
        look(stage)
    assert state_of(stage) == "running"


def test_mlflow_being_down_fails_nothing(running, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr(tracking, "_FIRST_WAIT", 60.0)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert look(running()).step == 19


def test_eight_days_on_a_stage_of_two_weeks_is_healthy(running, configs):
    text = [{**stage, "hours": 14 * 24} for stage in configs.stages()]
    stage = running(stages=text)
    now = look(stage) and read_json(stage.watch)["last_look"]
    assert look(stage, now=now + 8 * DAY).state == "running"
    assert not stage.cause.exists()
    assert timeout_seconds(plan_of(stage)) > 14 * DAY


def test_a_stage_beyond_its_hours_is_stopped(running):
    stage = running()
    now = look(stage) and read_json(stage.watch)["last_look"]
    look(stage, now=now + 3600)  # at the limit its own launcher ends it, which may take a moment
    with pytest.raises(StageStopped, match=r"gpus_8 is stopped at step 19: it has run for 192\.0 h; the stage has 1 h"):
        look(stage, now=now + 8 * DAY)
    assert read_json(stage.cause)["cause"] == "hours"
    assert cancel(stage).endswith("the stage has 1 h")
    assert marked(job_of(stage).name) == []


def test_a_job_that_its_launcher_ended_at_its_hours_says_so(running, configs):
    stage = running(stages=[{**stage, "hours": 0.8 / 3600} for stage in configs.stages()])
    until(lambda: state_of(stage) == "failed")
    with pytest.raises(StageStopped, match="its hours were up"):
        look(stage)
    assert read_json(stage.cause)["cause"] == "hours"


def test_a_job_queued_for_too_long_is_given_up(begin, configs):
    configs.cluster(queue_hours=2.0)
    stage = begin()
    job = launch(stage)
    until(lambda: state_of(stage) == "succeeded")
    for name in ("supervisor.json", "exit.json"):  # the folder of a job that has been taken and not started
        (Path(job.folder) / name).unlink()
    submitted = read_json(stage.job)["submitted"]
    assert look(stage, now=submitted + 1.9 * 3600).state == "queued"
    with pytest.raises(StageStopped, match=r"it waits since 3\.0 h; cluster here has queue_hours: 2"):
        look(stage, now=submitted + 3 * 3600)
    assert read_json(stage.cause)["cause"] == "queue"
    assert "is cancelled (queue)" in cancel(stage)
    assert state_of(stage) == "cancelled"


def test_a_cluster_that_does_not_answer_is_looked_at_again(begin):
    stage = begin()
    job = launch(stage)
    until(lambda: state_of(stage) == "succeeded")
    for name in ("supervisor.json", "exit.json", "order.json"):  # nothing there that would tell
        (Path(job.folder) / name).unlink()
    seen = look(stage, now=read_json(stage.job)["submitted"] + 8 * DAY)
    assert (seen.done, seen.state) == (False, "unknown")
    assert not stage.cause.exists()


def test_an_early_gate_stops_a_stage_and_a_person_may_let_it_go_on(begin, configs, gate_file):
    go_on, settings = gate_file
    stage = begin(settings={**settings, "wait_at": 45, "diverge_at": 35}, live={"finite": {"action": "note"}})
    launch(stage)
    look_to_the_end(stage)
    write_json(stage.verdict, {"outcome": "PASS", "checks": []})
    promote(stage)
    second = stage.run.stage("gpus_64")
    write_json(second.forecast, {"outcome": "PASS", "checks": []})
    launch(second)
    until(lambda: 44 in steps(second))
    with pytest.raises(StageStopped, match="gpus_64 is stopped at step 44: gate finite_loss says FAIL: "):
        look(second)
    assert read_json(second.cause)["cause"] == "gate"
    assert "is cancelled (gate)" in cancel(second)
    assert override(second, "step 35 is known", "mo")["kind"] == "leave"
    go_on.touch()
    assert launch(second).attempt == 2
    assert look_to_the_end(second).step == 70
    assert read_json(second.attempt(1) / "cause.json")["cause"] == "gate"


def test_a_try_that_a_person_asks_for_has_its_full_hours(running, gate_file):
    stage = running()
    now = look(stage) and read_json(stage.watch)["last_look"]
    with pytest.raises(StageStopped):
        look(stage, now=now + DAY)
    cancel(stage)
    gate_file[0].touch()
    launch(stage)
    assert look_to_the_end(stage).step == 40


def test_a_repair_and_a_launch_at_once_make_one_attempt(running, gate_file):
    stage = running()
    os.kill(json.loads((stage.attempt(1) / "supervisor.json").read_text())["pid"], signal.SIGKILL)
    until(lambda: state_of(stage) == "lost")
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(call, stage) for call in (look, launch, look, launch)]:
            done.result(timeout=60)
    assert job_of(stage).attempt == 2
    gate_file[0].touch()
    look_to_the_end(stage)


def test_no_repair_after_a_person_ended_the_stage(running):
    stage = running()
    os.kill(json.loads((stage.attempt(1) / "supervisor.json").read_text())["pid"], signal.SIGKILL)
    until(lambda: state_of(stage) == "lost")
    mark_person(stage, "mo", "enough")
    assert relaunch(stage, job_of(stage)).attempt == 1
    assert "is cancelled (person)" in cancel(stage)
