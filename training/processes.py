"""Processes: how many, how they start together, find each other, add tensors, and end together.

*Forked*, on one machine: torch.distributed.elastic forks them from one that has already imported torch and read the
data (0.2 s instead of 10 s for eight); they meet through files in a folder of their own, and talk by gloo over the
loopback interface, so no port is open to other machines.
*Started* by torchrun, on any number of machines: this process is one of them, its environment says which, and they meet
at MASTER_ADDR:MASTER_PORT. Either way they die with their parent, and end as the first of them that failed.
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
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from training.config import ConfigError, TrainConfig

_PR_SET_PDEATHSIG = 1
_MONITOR_SECONDS = 0.05  # between the agent's looks at its processes
_PARTNER_SECONDS = 20 * _MONITOR_SECONDS
REFUSED = 2  # exit code: the order cannot be carried out, and starting again would not help
STOP_FILE = "SCALEUP_STOP_FILE"  # one byte that training.torchrun shares with the processes it starts on its machine
AGENT = "SCALEUP_AGENT_PID"  # who started them

T = TypeVar("T")


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

    def from_first(self, value: T) -> T:
        """Return the first process's ``value`` in every process; it must pickle."""
        held = [value]
        if self.processes > 1:
            dist.broadcast_object_list(held, device=self.device)
        return held[0]

    def check_equal(self, tensors: dict[str, Tensor]) -> None:
        """Raise TrainingError if the sum of any of ``tensors`` is not the same on all processes."""
        if not tensors:
            return
        sums = torch.stack([t.detach().double().sum() for t in tensors.values()]).to(self.device)
        least, most = sums.clone(), sums.clone()
        if self.processes > 1:
            dist.all_reduce(least, dist.ReduceOp.MIN)
            dist.all_reduce(most, dist.ReduceOp.MAX)
        if not torch.equal(least, most):
            name = list(tensors)[int((least != most).nonzero()[0])]
            raise TrainingError(f"{name} differs between processes before the first step; they must start equal")


@dataclass(frozen=True)
class Started:
    """The place of this process among those that torchrun started."""

    rank: int
    processes: int
    local_rank: int  # among those of its machine

    @classmethod
    def found(cls) -> Started | None:
        """Read it from the environment; None where nobody started us so. Raises ConfigError for half of it."""
        if "RANK" not in os.environ:
            return None
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        if missing := [name for name in names if not os.environ.get(name)]:
            raise ConfigError(
                f"the environment has RANK, as torchrun sets it, but no {missing[0]}; use torchrun, or unset RANK"
            )
        try:
            return cls(*(int(os.environ[name]) for name in names[:3]))
        except ValueError as error:
            raise ConfigError(f"the environment's {', '.join(names[:3])} must be whole numbers: {error}") from error


class StopRequest:
    """One byte that all processes of a machine share: SIGUSR1, to any of them, asks to save and stop.

    Other machines hear of it with the gradients of the next step.
    """

    def __init__(self) -> None:
        """Make it before forking; where training.torchrun started us, the byte is the one that it made."""
        shared = os.environ.get(STOP_FILE)
        if shared is None:
            self._byte = mmap.mmap(-1, 1)
            return
        with open(shared, "r+b") as file:
            self._byte = mmap.mmap(file.fileno(), 1)

    def __bool__(self) -> bool:
        """Whether anyone has asked."""
        return self._byte[0] != 0

    def ask(self) -> None:
        """Ask."""
        self._byte[0] = 1

    def listen(self) -> None:
        """Answer SIGUSR1 in this process and those forked from it, one that came while it was blocked as well."""
        signal.signal(signal.SIGUSR1, lambda number, frame: self.ask())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})


def processes_for(config: TrainConfig, started: Started | None = None) -> int:
    """Return how many processes carry the ranks; raise ConfigError where that cannot be measured honestly."""
    asked = config.processes
    if asked is not None and not 1 <= asked <= config.gpus:
        raise ConfigError(f"processes: {asked} is not between 1 and the stage's {config.gpus} GPUs")
    if asked is not None and asked < config.gpus and config.emulation is None:
        raise ConfigError(
            f"processes: {asked} processes cannot be timed as {config.gpus} GPUs; "
            f"give {config.gpus} processes, or an emulated cluster, whose step time is modelled"
        )
    if asked is None and config.emulation is None:
        asked = config.gpus
    if started is None:
        one_copy = config.layout.group * config.layout.shard
        return asked or max(one_copy, min(2, os.cpu_count() or 1, config.gpus))
    most = asked or config.gpus
    if started.processes > most or (asked is not None and started.processes < asked):
        wanted = f"{asked} processes" if asked else f"at most {most} processes, one a GPU"
        raise ConfigError(
            f"WORLD_SIZE is {started.processes}, and config.json asks for {wanted}; "
            "start torchrun with as many: --nnodes times --nproc-per-node"
        )
    return started.processes


def gpus_suffice(config: TrainConfig, processes: int, started: Started | None = None) -> bool:
    """Whether each process of a stage that is not emulated finds a CUDA device of its own on its machine.

    Raises ConfigError where torchrun started more processes on a machine with CUDA devices than it has of them.
    """
    if config.emulation is not None:
        return False
    devices = torch.cuda.device_count()
    if started is None:
        return devices >= processes
    if 0 < devices <= started.local_rank:
        raise ConfigError(
            f"LOCAL_RANK is {started.local_rank}, and there are {devices} CUDA devices here; lower --nproc-per-node"
        )
    return devices > 0


def run(function: Callable[[World], None], processes: int, gpus: bool = False, started: Started | None = None) -> None:
    """Run ``function`` in every process and return when all are done; end as a process ended that failed.

    ``gpus`` gives each process a CUDA device of its own; the parent must not have used CUDA before.
    """
    torch.set_num_threads(1)
    if started is not None:
        _die_with_parent(int(os.environ.get(AGENT, 0)))
        _join(function, started, gpus)
    elif processes == 1:
        function(World(device=_device(0, gpus)))
    else:
        _fork(function, processes, gpus)


def _fork(function: Callable[[World], None], processes: int, gpus: bool) -> None:
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
            code = first_failure(error)
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


def first_failure(error: object) -> int:
    """Return the exit code that started it: those that lost their partner fail later, by their own exception."""
    failures = sorted(error.failures.values(), key=lambda f: (f.exitcode == 1, f.timestamp))  # type: ignore[attr-defined]
    return int(failures[0].exitcode)


def _worker(function: Callable[[World], None], processes: int, gpus: bool, meeting: str, parent: int) -> None:
    """Live and die as one process of a forked job."""
    _die_with_parent(parent)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    here = Started(int(os.environ["RANK"]), processes, int(os.environ["LOCAL_RANK"]))
    _join(function, here, gpus, dist.FileStore(meeting, processes))  # type: ignore[attr-defined]


def _join(function: Callable[[World], None], here: Started, gpus: bool, store: Any = None) -> None:
    """Meet the others, at ``store`` or where the environment says, do one's part, leave when all have done theirs."""
    device = _device(here.local_rank, gpus)
    if here.processes == 1:
        return function(World(device=device))
    backend = "nccl" if device.type == "cuda" else "gloo"
    world = World(here.rank, here.processes, device)
    try:
        dist.init_process_group(backend, store=store, rank=here.rank, world_size=here.processes)
        function(world)
        world.wait()  # the first process may hold the store, so it leaves no sooner than the others are done
    except Exception:
        # The agent reports only one of those it finds ended. A killed process takes its partners down by their own
        # exceptions within milliseconds; they wait, so that the kill is seen first and is not taken for a fault of the
        # program, which nobody would start again.
        time.sleep(_PARTNER_SECONDS)
        raise
    dist.destroy_process_group()


def _die_with_parent(parent: int) -> None:
    """Tie this process to the one that started it; ``parent`` 0 is one whose number we were not told."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and not Path(f"/proc/{parent}").exists():
        sys.exit(1)  # it was gone before we could tie ourselves to it


def _device(local_rank: int, gpus: bool) -> torch.device:
    if not gpus:
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
