"""How a job of Slurm's is, told apart: waiting and why, requeued, preempted, a segment over, lost with its node, gone.

Slurm lets a requeued job wait for some seconds, so the jobs of this file wait at the same time, each on a node of its
own, and each test looks at one of them.
"""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from launching import LAUNCHERS, SLEEPER, end_of, printed, program
from running import until

from tasks.launchers import Job
from tasks.launchers.processes import marked
from tasks.launchers.slurm import nodes as node_memory

# Takes a step in a twentieth of a second, keeps every tenth, saves on SIGUSR1, and goes on from what it kept.
TRAINER = """
import json, pathlib, signal, sys, time
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
folder = pathlib.Path("checkpoints"); folder.mkdir(exist_ok=True)
step = max([int(p.name) for p in folder.iterdir()], default=0)
print("begins after", step, flush=True)
with open("metrics.jsonl", "a", buffering=1) as metrics:
    while step < int(sys.argv[1]):
        time.sleep(0.05)
        step += 1
        metrics.write(json.dumps({"step": step}) + "\\n")
        if told or step % 10 == 0:
            (folder / str(step)).mkdir(exist_ok=True)
        if told:
            print("saved", step, flush=True)
            sys.exit(0)
"""


def made(folder, name, text=SLEEPER, *arguments, **changes):
    """Return a job in a folder of its own."""
    folder = folder / name
    folder.mkdir()
    job = Job(
        name=f"states.{folder.parent.name}.{name}", attempt=1, command=("true",), nodes=1, gpus_per_node=8, hours=1.0,
        folder=str(folder / "attempt_1"), metrics=str(folder / "metrics.jsonl"),
        checkpoints=str(folder / "checkpoints"), cwd=str(folder),
    )  # fmt: skip
    return program(replace(job, **changes), text, *arguments)


def steps_of(job):
    path = Path(job.metrics)
    return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []


def node_of(slurm, number):
    return slurm.ask("squeue", "-h", "-j", number, "-o", "%N").strip()


@pytest.fixture(scope="module")
def there(slurm, tmp_path_factory):
    """Jobs that were cut off, preempted, or are done with a segment: all under way at once."""
    folder = tmp_path_factory.mktemp("jobs")
    ours = replace(LAUNCHERS["slurm"], memory=str(folder / "bad_nodes.json"))
    chained = replace(ours, segment_hours=4 / 3600, save_seconds=2.0)
    launchers = {"cut": ours, "preempted": ours, "chained": chained, "unlucky": replace(ours, requeue=False)}
    jobs = {
        "cut": made(folder, "cut", TRAINER, "60"),
        "preempted": made(folder, "preempted", TRAINER, "200", sigusr1=True),
        "chained": made(folder, "chained", TRAINER, "45", sigusr1=True),
        "unlucky": made(folder, "unlucky"),
    }
    numbers = {name: launchers[name].submit(job) for name, job in jobs.items()}
    nodes = {}
    for name, job in jobs.items():
        until(lambda job=job, name=name: steps_of(job) or "here" in printed(job) or name == "x")
        nodes[name] = node_of(slurm, numbers[name])
    until(lambda: 15 in steps_of(jobs["cut"]))
    slurm.ask("scontrol", "update", f"NodeName={nodes['cut']}", "State=DRAIN", "Reason=fan broken")
    slurm.ask("scontrol", "requeue", numbers["cut"])  # what slurmctld does when a node of the job is lost
    urgent = ["sbatch", "--parsable", "-p", "urgent", "--exclusive", "-w", nodes["preempted"], "-o", "/dev/null"]
    subprocess.run([*urgent, "--wrap", "sleep 1"], check=True, capture_output=True)
    slurm.ask("scontrol", "update", f"NodeName={nodes['unlucky']}", "State=DOWN", "Reason=no power")
    yield SimpleNamespace(slurm=slurm, launchers=launchers, jobs=jobs, numbers=numbers, nodes=nodes, bad=ours)
    for name, job in jobs.items():
        launchers[name].cancel(job, "the tests are over")
        assert marked(job.name) == []
    slurm.ask("scontrol", "update", f"NodeName={nodes['cut']}", "State=RESUME")


def test_a_node_s_loss_without_requeue_is_no_program_s_fault(there):
    state = end_of(there.launchers["unlucky"], there.jobs["unlucky"])
    assert state.state == "lost"
    assert f"job {there.numbers['unlucky']} is NODE_FAIL" in state.reason


def test_a_job_that_is_cut_off_waits_again_without_the_bad_node_and_goes_on_from_its_checkpoint(there):
    job, launcher, bad = there.jobs["cut"], there.launchers["cut"], there.nodes["cut"]
    state = until(lambda: (now := launcher.poll(job)).state == "queued" and now)
    assert state.reason.startswith("pending: requeued (restart 0, segment 1), ")
    assert state.queued_since and state.ran_seconds is not None  # whole seconds, so possibly none
    assert bad in node_memory.bad(launcher)
    assert bad in there.slurm.ask("scontrol", "show", "job", there.numbers["cut"]).split("ExcNodeList=")[1].split()[0]
    state = end_of(launcher, job)
    assert (state.state, state.restarts) == ("succeeded", 1)
    assert "begins after 10" in printed(job) and sorted(set(steps_of(job))) == list(range(1, 61))
    assert there.slurm.jobs(job.name) == [there.numbers["cut"]]
    later = replace(job, name=f"{job.name}.later", folder=f"{job.folder}.later")
    launcher.submit(later)  # another job does not get it either, for a day
    assert f"#SBATCH --exclude={','.join(node_memory.bad(launcher))}\n" in (Path(later.folder) / "batch.sh").read_text()
    launcher.cancel(later, "only its script was of interest")
    assert node_memory.bad(launcher, now=10**12) == []


def test_preemption_saves_and_the_job_goes_on_where_it_saved(there):
    job, launcher = there.jobs["preempted"], there.launchers["preempted"]
    until(lambda: printed(job).count("begins after") == 2)
    saved = int(printed(job).split("saved ")[1].split()[0])
    assert f"begins after {saved}\n" in printed(job)
    assert steps_of(job)[: saved + 1] == list(range(1, saved + 1)) + [saved + 1][: len(steps_of(job)) - saved]
    launcher.cancel(job, "enough", save=False)
    state = launcher.poll(job)
    assert (state.state, printed(job).count("saved ")) == ("cancelled", 1)


def test_a_stage_longer_than_its_segments_is_a_chain_of_them_and_no_end_counts_as_a_failure(there):
    job, launcher = there.jobs["chained"], there.launchers["chained"]
    state = end_of(launcher, job)
    assert (state.state, state.restarts) == ("succeeded", 0)
    assert steps_of(job) == list(range(1, 46))  # each once: every segment ended with a checkpoint of its last step
    assert json.loads((Path(job.folder) / "exit.json").read_text())["segments"] >= 1
    assert there.slurm.jobs(job.name) == [there.numbers["chained"]]


def test_what_waits_says_why_and_what_somebody_else_ends_is_cancelled(slurm, tmp_path):
    launcher, job = LAUNCHERS["slurm"], made(tmp_path, "large", nodes=9)
    number = launcher.submit(job)
    state = until(lambda: (now := launcher.poll(job)).expects not in ("", "None") and now)
    assert state.state == "queued" and state.expects in ("PartitionConfig", "PartitionNodeLimit")
    slurm.ask("scancel", number)
    state = until(lambda: (now := launcher.poll(job)).over and now)
    assert state.state == "cancelled" and state.reason.startswith(f"job {number} was cancelled")


def test_what_slurm_has_forgotten_is_lost_unless_it_left_a_last_word(slurm, tmp_path):
    launcher, job = LAUNCHERS["slurm"], made(tmp_path, "forgotten")
    folder = Path(job.folder)
    folder.mkdir()
    (folder / "slurm.json").write_text('{"id": "4000000"}')
    assert launcher.poll(job).reason == "Slurm has forgotten job 4000000, and it never started"
    (folder / "run.json").write_text("{}")
    assert launcher.poll(job).state == "lost"
    (folder / "exit.json").write_text(
        '{"reason": "finished", "code": 0, "signal": null, "detail": "", "restarts": 0, "fruitless": 0, "started": 1}'
    )
    assert launcher.poll(job).state == "succeeded"
