"""A climb killed at random writes, its trainer or supervisor with it, and gone on with: the same ladder in the end.

``make chaos`` runs it. A seed names every death, so that what it finds can be looked at again.
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running import steps

from tasks.launch import job_of
from tasks.launchers.processes import marked
from tasks.records import read_metrics
from tasks.run import plan_of
from tasks.stage_dir import RunDir, read_json
from training.store import open_series, problems

ROOT = Path(__file__).parents[2]
WAITING, DEATHS, WRITES = 4, 9, 30  # rounds in which the trainer waits; rounds that end by a death; writes until it
CLIMB = """
import os, signal, sys
real, left = os.replace, [int(sys.argv[1])]
def replace(*arguments, **named):
    real(*arguments, **named)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
os.replace = replace  # every file that is written whole gets its name by it
from tasks.cli import main
sys.exit(main(["run", "tiny", "--plain", "--run-id", sys.argv[2]]))
"""


def climb(run_id, writes):
    """Climb in a process of its own that dies after so many writes (0: never); return the finished process."""
    command = [sys.executable, "-c", CLIMB, str(writes), run_id]
    return subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=120)


def victims(run, what):
    """Return the processes of the newest job: its supervisor, or those of the trainer."""
    stages = [stage for stage in (run.stage("gpus_64"), run.stage("gpus_8")) if stage.job.exists()]
    if not stages:
        return []
    job = job_of(stages[0])
    supervisor = read_json(Path(job.folder) / "supervisor.json")
    return marked(job.name) if what == "trainer" else [supervisor] if supervisor else []


def kill(run, what):
    for victim in victims(run, what):
        try:
            os.kill(victim["pid"], signal.SIGKILL)
        except ProcessLookupError:
            continue  # it was over before


@pytest.fixture
def undisturbed(configs):
    """What every climb must come to: steps, tokens and losses of both stages."""
    done = climb("calm", 0)
    assert done.returncode == 0, done.stderr
    run = RunDir.of("tiny", "calm")
    return {name: trained(run.stage(name)) for name in ("gpus_8", "gpus_64")}


def trained(stage):
    return read_metrics(stage.metrics).steps[["step", "tokens", "loss"]].to_dict("list")


@pytest.mark.parametrize("seed", range(3))
def test_a_climb_killed_at_random_comes_to_the_same_end(undisturbed, configs, tmp_path, seed):
    chosen, file = random.Random(seed), tmp_path / "go_on"
    configs.experiment(settings={"wait_at": 20, "wait_for": str(file)})
    run = RunDir.of("tiny", f"seed_{seed}")
    told = []
    for number in range(DEATHS):
        if number == WAITING:
            file.touch()
        writes, what = chosen.randint(1, WRITES), chosen.choice(["nothing", "trainer", "supervisor"])
        ended = climb(run.run_id, writes)
        told.append((writes, what, ended.returncode))
        if ended.returncode != -signal.SIGKILL:
            break
        kill(run, what)
    file.touch()
    last = climb(run.run_id, 0)
    assert last.returncode == 0, f"{told}\n{last.stdout}\n{last.stderr}"

    for name, expected in undisturbed.items():
        stage = run.stage(name)
        assert trained(stage) == expected, told  # nothing lost, nothing done otherwise the second time
        assert steps(stage)[-1] == expected["step"][-1]
        kept = read_json(stage.promotion)["checkpoint"]
        series = open_series(plan_of(stage).cluster.store.settings(), kept["series"])
        assert problems(series, kept["step"]) == []
        assert marked(job_of(stage).name) == []
