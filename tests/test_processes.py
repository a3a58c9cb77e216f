"""Processes that torchrun started are those that a job would have forked; what they cannot be, they say."""

import os
import signal
import socket
from pathlib import Path

import pytest
import started
import torch
from running import until
from trained import order, records, span, steps, tensors

from training import torchrun, train
from training.processes import Started


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Two agents at once, since each waits for imports: a job to its end, and one that is asked to save."""
    root = tmp_path_factory.mktemp("started")
    plain = order(root / "plain", span(1, 6, 20), processes=2, reduction="exact")
    asked = order(root / "asked", span(1, 100_000, 20), processes=2)
    pair = (
        started.Agent(started.TORCHRUN, plain, "--nproc-per-node=2"),
        started.Agent(started.OURS, asked, "--nproc-per-node=2"),
    )
    with started.agents(*pair) as (torchrun, ours):
        # Before it has imported torch: the agent has the signal blocked by then, and the job has not begun.
        until(lambda: _blocks(ours.pid, signal.SIGUSR1), started.SECONDS)
        os.kill(ours.pid, signal.SIGUSR1)
        return {"root": root, "plain": torchrun.end(), "asked": ours.end(), "left": torchrun.started + ours.started}


def _blocks(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
    return bool(mask >> (number - 1) & 1)


def test_a_job_started_by_torchrun_is_the_forked_one_bit_for_bit(ends):
    code, said = ends["plain"]
    assert code == 0, said
    folder = ends["root"] / "plain"
    alone = order(ends["root"] / "alone", span(1, 6, 20), processes=1, reduction="exact")
    assert train.main([str(alone)]) == 0
    (header,) = records(folder, "header")
    assert header["processes"] == 2
    found, wanted = steps(folder), steps(alone)
    assert [found[step]["loss"] for step in range(1, 7)] == [wanted[step]["loss"] for step in range(1, 7)]
    pair = [tensors(each / "checkpoints/step_00000006") for each in (folder, alone)]
    learnt = [name for name in pair[1] if name.startswith(("model.", "optimizer."))]
    assert len(learnt) > 50
    assert all(torch.equal(pair[0][name], pair[1][name]) for name in learnt)


def test_an_agent_asked_to_save_before_its_processes_can_listen_has_them_save_and_exit(ends):
    code, said = ends["asked"]
    assert code == 0, said
    (saved,) = records(ends["root"] / "asked", "checkpoint")
    assert saved["saved"] is True
    assert saved["step"] == 1, "the very first step knew it"
    assert ends["left"] == []


AROUND = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("around", "changes", "sentence"),
    [
        ({"WORLD_SIZE": "3"}, {}, "WORLD_SIZE is 3, and config.json asks for 2 processes; start torchrun with as many"),
        ({}, {"processes": None, "emulation": None}, "WORLD_SIZE is 2, and config.json asks for 8 processes"),
        ({"WORLD_SIZE": "9"}, {"processes": None}, "WORLD_SIZE is 9, and config.json asks for at most 8 processes"),
        ({"MASTER_PORT": ""}, {}, "the environment has RANK, as torchrun sets it, but no MASTER_PORT"),
        ({"RANK": "one"}, {}, "RANK, WORLD_SIZE, LOCAL_RANK must be whole numbers: "),
    ],
)
def test_a_place_that_the_orders_do_not_know_is_refused(tmp_path, monkeypatch, capsys, around, changes, sentence):
    for name, value in (AROUND | around).items():
        monkeypatch.setenv(name, value)
    folder = order(tmp_path / "stage", span(1, 3, 20), **changes)
    assert train.main([str(folder)]) == train.REFUSED
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_without_torchruns_variables_nobody_started_us(monkeypatch):
    for name in AROUND:
        monkeypatch.delenv(name, raising=False)
    assert Started.found() is None
    monkeypatch.setenv("WORLD_SIZE", "4")  # alone it says nothing: schedulers set it, too
    assert Started.found() is None
    assert "RANK" not in os.environ


def test_processes_meet_at_a_port_that_the_kernel_hands_out_to_nobody(tmp_path):
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    rendezvous = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1", "--rdzv-id=meet")
    show = ("--no-python", "sh", "-c", "echo met at $MASTER_PORT")
    with started.agents(started.Agent(started.OURS, tmp_path, "--nnodes=1", *rendezvous, program=show)) as (agent,):
        code, said = agent.end()
    assert code == 0, said
    (port,) = [int(line.rsplit(" ", 1)[1]) for line in said.splitlines() if line.startswith("met at ")]
    assert 15_000 <= port < lowest


def test_a_port_to_meet_at_is_free_and_any_free_one_where_the_kernel_hands_out_all(tmp_path, monkeypatch):
    handed_out = tmp_path / "range"
    monkeypatch.setattr(torchrun, "_HANDED_OUT", str(handed_out))
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(torchrun, "_LOWEST", port)
        handed_out.write_text(f"{port + 1}\t65535\n")  # which leaves the taken one alone
        assert torchrun.meeting_port() not in (0, port)
    for text in ("1024 65535", "not a number"):
        handed_out.write_text(text)
        assert torchrun.meeting_port() > 0
