"""Two agents, as on two machines: what happens to one process happens to the job, wherever the others are."""

import os
import re
import signal
import socket
import subprocess

import pytest
import started
import torch
from running import until
from trained import order, records, span, steps, tensors

LONG = span(1, 100_000, 20)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def two(folders, how=started.OURS) -> list[subprocess.Popen]:
    """Start an agent for each of two folders, one process each, that meet at one port."""
    meet = (f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-backend=c10d", "--nnodes=2", "--nproc-per-node=1")
    return [started.agent(how, folder, *meet, "--rdzv-id=two", "--local-addr=127.0.0.1") for folder in folders]


def workers(agents) -> list[int]:
    """Return the agents' own children, once each has one."""
    found = [started.left(agent) for agent in agents]
    return [pids[0] for pids in found] if all(found) else []


def trains(folder, step):
    return (folder / "metrics.jsonl").exists() and max(steps(folder), default=0) >= step


@pytest.mark.parametrize("whom", ["an agent", "a process"])
def test_asking_one_to_save_saves_the_whole_job(tmp_path, whom):
    folder = order(tmp_path / "stage", LONG)
    agents = two([folder, folder])
    until(lambda: trains(folder, 3), started.SECONDS)
    os.kill(agents[1].pid if whom == "an agent" else workers(agents)[1], signal.SIGUSR1)
    for agent in agents:
        code, said = started.end(agent)
        assert code == 0, said
        assert started.left(agent) == []
    (saved,) = records(folder, "checkpoint")
    assert saved["saved"] is True


def test_a_killed_process_ends_both_agents_and_starting_again_goes_on(tmp_path):
    settings = {"reduction": "exact"}
    folder, alone = (order(tmp_path / name, span(1, 400, 4), **settings) for name in ("stage", "alone"))
    agents = two([folder, folder])
    until(lambda: trains(folder, 3), started.SECONDS)
    os.kill(workers(agents)[1], signal.SIGKILL)
    codes = [started.end(agent)[0] for agent in agents]
    assert codes[1] == -signal.SIGKILL, "it ends as its process did"
    assert codes[0] != 0
    assert [started.left(agent) for agent in agents] == [[], []]
    for each, pair in ((folder, two([folder, folder])), (alone, two([alone, alone]))):
        for agent in pair:
            code, said = started.end(agent)
            assert code == 0, said
        assert list(steps(each)) == list(range(1, 401))
    ends = [tensors(each / "checkpoints/step_00000400") for each in (folder, alone)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])


def test_a_machine_with_other_orders_is_refused(tmp_path):
    agents = two([order(tmp_path / "one", LONG), order(tmp_path / "two", LONG, seed=12)])
    ends = [started.end(agent) for agent in agents]
    assert sorted(code for code, _ in ends)[1] == 2
    assert re.search(r"rank 1 on \S+ reads other orders than rank 0", "".join(said for _, said in ends))
    assert not any((tmp_path / name / "checkpoints").exists() for name in ("one", "two"))


def test_an_agent_that_is_killed_takes_its_processes_along(tmp_path):
    folder = order(tmp_path / "stage", LONG)
    agents = two([folder, folder])
    until(lambda: trains(folder, 3), started.SECONDS)
    agents[0].kill()
    assert started.end(agents[0])[0] == -signal.SIGKILL
    until(lambda: not started.left(agents[0]))
    assert started.end(agents[1])[0] != 0
    assert started.left(agents[1]) == []
