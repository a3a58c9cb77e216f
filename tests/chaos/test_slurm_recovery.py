"""A rank, or a whole node, is killed under torchrun on two nodes of Slurm: the losses are those of an undisturbed run.

``make chaos`` runs it and prints how long after the kill the next new step was taken (30 s are the aim).
"""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from launching import LAUNCHERS, end_of, printed
from running import until
from trained import order, records, span, steps

from tasks.launchers.processes import marked
from training.config import Checkpointing

LAST, KILL_AT = 60, 25
LAUNCHER = replace(
    LAUNCHERS["slurm"], start="torchrun", processes_per_node=1, network={"GLOO_SOCKET_IFNAME": "lo"},
)  # fmt: skip


def training(job, folder):
    """Return the job that trains a stage's folder on two nodes."""
    files = {"metrics": str(folder / "metrics.jsonl"), "checkpoints": str(folder / "checkpoints")}
    command = (sys.executable, "-m", "training.train", str(folder))
    cwd = str(Path(__file__).parents[2])
    return replace(
        job, name=f"{job.name}.{folder.name}", command=command, nodes=2, cwd=cwd, sigusr1=True,
        folder=str(folder / "attempt_1"), **files,
    )  # fmt: skip


def trainers(job):
    """Return the processes that train, each with its node."""
    found = {}
    for process in marked(job.name):
        try:
            words = Path(f"/proc/{process['pid']}/cmdline").read_bytes().split(b"\0")
            around = dict(
                line.partition(b"=")[::2] for line in Path(f"/proc/{process['pid']}/environ").read_bytes().split(b"\0")
            )
        except OSError:
            continue
        if words[1:3] == [b"-m", b"training.train"]:
            found[around[b"SLURMD_NODENAME"].decode()] = process["pid"]
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("launcher", ["slurm"], indirect=True)
@pytest.mark.parametrize("what", ["rank", "node"])
def test_what_was_killed_comes_back_and_no_loss_differs(slurm, launcher, job, tmp_path, what):
    keeps = Checkpointing(every_steps=10, keep=3)
    folders = [order(tmp_path / name, span(1, LAST, 8), checkpointing=keeps) for name in ("calm", "killed")]
    calm, killed = (training(job, folder) for folder in folders)
    LAUNCHER.submit(calm)
    assert end_of_long(calm).state == "succeeded", printed(calm)

    LAUNCHER.submit(killed)
    until(lambda: Path(killed.metrics).exists() and max(steps(folders[1]), default=0) >= KILL_AT, 120)
    node, pid = sorted(trainers(killed).items())[-1]  # not the node of the batch script
    if what == "rank":
        os.kill(pid, signal.SIGKILL)
    else:
        slurm.do("crash-node", node)
    at = time.time()
    try:
        state = end_of_long(killed)
    finally:
        if what == "node":
            slurm.do("start-node", node)
    assert (state.state, state.restarts) == ("succeeded", 1), printed(killed)
    again = min(record["time"] for record in records(folders[1], "step") if record["time"] > at + 0.2)
    expected, came = steps(folders[0]), steps(folders[1])
    assert [(n, came[n]["loss"]) for n in sorted(came)] == [(n, expected[n]["loss"]) for n in sorted(expected)]
    print(f"\n{what} killed on {node}: the next step was taken {again - at:.1f} s later; all {LAST} losses are equal")
    LAUNCHER.cancel(killed, "over")


def end_of_long(job):
    """Wait for the end of a job that trains."""
    until(lambda: LAUNCHER.poll(job).over, 240)
    return end_of(LAUNCHER, job)
