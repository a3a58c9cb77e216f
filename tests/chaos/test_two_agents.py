"""Two agents, as on two machines: what happens to one process happens to the job, wherever the others are."""

import os
import re
import signal
import socket

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


def two(*folders):
    """Start an agent for each of two folders, one process each, that meet at one port."""
    meet = (f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-backend=c10d", "--nnodes=2", "--nproc-per-node=1")
    options = (*meet, "--rdzv-id=two", "--local-addr=127.0.0.1")
    return started.agents(*(started.Agent(started.OURS, folder, *options) for folder in folders))


def trains(folder, step):
    return (folder / "metrics.jsonl").exists() and max(steps(folder), default=0) >= step


@pytest.mark.parametrize("whom", ["an agent", "a process"])
def test_asking_one_to_save_saves_the_whole_job(tmp_path, whom):
    folder = order(tmp_path / "stage", LONG)
    with two(folder, folder) as pair:
        until(lambda: trains(folder, 3), started.SECONDS)
        os.kill(pair[1].pid if whom == "an agent" else pair[1].started[0], signal.SIGUSR1)
        for agent in pair:
            code, said = agent.end()
            assert code == 0, said
            assert agent.started == []
    (saved,) = records(folder, "checkpoint")
    assert saved["saved"] is True


def test_a_killed_process_ends_both_agents_and_starting_again_goes_on(tmp_path):
    folder, alone = (order(tmp_path / name, span(1, 400, 4), reduction="exact") for name in ("stage", "alone"))
    with two(folder, folder) as pair:
        until(lambda: trains(folder, 3), started.SECONDS)
        os.kill(pair[1].started[0], signal.SIGKILL)
        codes = [agent.end()[0] for agent in pair]
        assert codes[1] == -signal.SIGKILL, "it ends as its process did"
        assert codes[0] != 0
        assert [agent.started for agent in pair] == [[], []]
    for each in (folder, alone):
        with two(each, each) as pair:
            for agent in pair:
                code, said = agent.end()
                assert code == 0, said
        assert list(steps(each)) == list(range(1, 401))
    ends = [tensors(each / "checkpoints/step_00000400") for each in (folder, alone)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])


def test_a_machine_with_other_orders_is_refused(tmp_path):
    folders = [order(tmp_path / "one", LONG), order(tmp_path / "two", LONG, seed=12)]
    with two(*folders) as pair:
        ends = [agent.end() for agent in pair]
    assert 2 in [code for code, _ in ends]
    assert re.search(r"rank 1 on \S+ reads other orders than rank 0", "".join(said for _, said in ends))
    assert not any((folder / "checkpoints").exists() for folder in folders)


def test_an_agent_that_is_killed_takes_its_processes_along(tmp_path):
    folder = order(tmp_path / "stage", LONG)
    with two(folder, folder) as pair:
        until(lambda: trains(folder, 3), started.SECONDS)
        os.kill(pair[0].pid, signal.SIGKILL)
        until(lambda: not pair[0].started)
        assert pair[0].end()[0] == -signal.SIGKILL
        assert pair[1].end()[0] != 0
        assert pair[1].started == []
