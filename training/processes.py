"""Processes: how many, how they start together, find each other, add tensors, and end together.

Several processes are forked by torch.distributed.elastic from one that has already imported torch and read the data
(0.2 s instead of 10 s for eight), meet through files in a folder of their own, and talk by gloo over the loopback
interface, so no port is open to other machines. They die with their parent.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from training.config import ConfigError, TrainConfig

_PR_SET_PDEATHSIG = 1
_MONITOR_SECONDS = 0.05  # between the agent's looks at its processes
_PARTNER_SECONDS = 20 * _MONITOR_SECONDS
REFUSED = 2  # exit code: the order cannot be carried out, and starting again would not help


class TrainingError(RuntimeError):
    """Training cannot go on; the message is for the person who reads the log."""


@dataclass(frozen=True)
class World:
    """This process among those of the job."""

    rank: int = 0
    processes: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this is the process that writes records."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> None:
        """Replace ``tensor`` by its sum over all processes."""
        if self.processes > 1:
            dist.all_reduce(tensor)

    def wait(self) -> None:
        """Return when every process has come here."""
        if self.processes > 1:
            dist.barrier()

    def check_equal(self, tensors: dict[str, Tensor]) -> None:
        """Raise TrainingError if the sum of any of ``tensors`` is not the same on all processes."""
        sums = torch.stack([t.detach().double().sum() for t in tensors.values()]).to(self.device)
        least, most = sums.clone(), sums.clone()
        if self.processes > 1:
            dist.all_reduce(least, dist.ReduceOp.MIN)
            dist.all_reduce(most, dist.ReduceOp.MAX)
        if not torch.equal(least, most):
            name = list(tensors)[int((least != most).nonzero()[0])]
            raise TrainingError(f"{name} differs between processes before the first step; they must start equal")


class StopRequest:
    """One byte of memory that all processes share: SIGUSR1, to any of them, asks to save and stop."""

    def __init__(self) -> None:
        """Make it before forking."""
        self._byte = mmap.mmap(-1, 1)

    def __bool__(self) -> bool:
        """Whether anyone has asked."""
        return self._byte[0] != 0

    def listen(self) -> None:
        """Answer SIGUSR1 in this process and those forked from it."""

        def ask(number: int, frame: object) -> None:
            self._byte[0] = 1

        signal.signal(signal.SIGUSR1, ask)


def processes_for(config: TrainConfig) -> int:
    """Return how many processes carry the ranks; raise ConfigError where that cannot be measured honestly."""
    if config.processes is None:
        return min(2, os.cpu_count() or 1, config.gpus) if config.emulation else config.gpus
    if not 1 <= config.processes <= config.gpus:
        raise ConfigError(f"processes: {config.processes} is not between 1 and the stage's {config.gpus} GPUs")
    if config.processes < config.gpus and config.emulation is None:
        raise ConfigError(
            f"processes: {config.processes} processes cannot be timed as {config.gpus} GPUs; "
            f"give {config.gpus} processes, or an emulated cluster, whose step time is modelled"
        )
    return config.processes


def gpus_suffice(config: TrainConfig, processes: int) -> bool:
    """Whether each process of a stage that is not emulated finds a CUDA device of its own here."""
    return config.emulation is None and torch.cuda.device_count() >= processes


def run(function: Callable[[World], None], processes: int, gpus: bool = False) -> None:
    """Run ``function`` in every process and return when all are done; end as a process ended that failed.

    ``gpus`` gives each process a CUDA device of its own; the parent must not have used CUDA before.
    """
    torch.set_num_threads(1)
    if processes == 1:
        function(World(device=_device(0, gpus)))
        return
    # Imported here: a single process needs none of it.
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # One shared store over restarts misleads late joiners in torch 2.13 (they wait for an address that is not set).
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="scaleup_meet_") as folder:
        launch = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id="scaleup",
            rdzv_backend="c10d",
            rdzv_endpoint=str(Path(folder) / "rendezvous"),
            rdzv_configs={"store_type": "file"},
            start_method="fork",
            max_restarts=0,
            monitor_interval=_MONITOR_SECONDS,
            local_addr="127.0.0.1",
        )
        try:
            elastic_launch(launch, _worker)(function, processes, gpus, str(Path(folder) / "group"), os.getpid())
            return
        except ChildFailedError as error:
            code = _first_failure(error)
        except SignalException as error:
            code = -int(error.sigval)
    end_like(code)


def end_like(code: int) -> None:
    """End this process as a child ended: by the same signal where it was one, else with its exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    raise SystemExit(code)


def _first_failure(error: object) -> int:
    """Return the exit code that started it: those that lost their partner fail later, by their own exception."""
    failures = sorted(error.failures.values(), key=lambda f: (f.exitcode == 1, f.timestamp))  # type: ignore[attr-defined]
    return int(failures[0].exitcode)


def _worker(function: Callable[[World], None], processes: int, gpus: bool, meeting: str, parent: int) -> None:
    """Live and die as one process of the job."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # the parent was gone before we could tie ourselves to it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    rank = int(os.environ["RANK"])
    device = _device(int(os.environ["LOCAL_RANK"]), gpus)
    store = dist.FileStore(meeting, processes)  # type: ignore[attr-defined]
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=processes)
    try:
        function(World(rank, processes, device))
    except Exception:
        # The agent reports only one of those it finds ended. A killed process takes its partners down by their own
        # exceptions within milliseconds; they wait, so that the kill is seen first and is not taken for a fault of the
        # program, which nobody would start again.
        time.sleep(_PARTNER_SECONDS)
        raise
    finally:
        dist.destroy_process_group()


def _device(local_rank: int, gpus: bool) -> torch.device:
    if not gpus:
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
