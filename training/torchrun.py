"""``python -m training.torchrun [torchrun's options] -m training.train STAGE_DIR``: torchrun, and what jobs need of it.

* SIGUSR1 to this process makes the job save and exit 0; plain torchrun would die of it. One that reaches a process
  still importing torch waits until that one can answer (Slurm sends it to all of them at once).
* This process ends as the first process that failed: by its signal, or with its exit code, where torchrun says 1.
* The rendezvous makes a new store at each restart. Torch 2.13's shared one misleads late joiners: they wait a minute
  for an address that is not set, and restarted processes read the addresses of those before them.
* The port at which the processes meet is chosen seconds before one of them listens. Torch takes any that is free, which
  an outgoing connection of the machine may have by then; ours lies below those that the kernel hands out.
* Where a process here fails, those elsewhere are told by the rendezvous; what starts this on each machine need not.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.processes import StopRequest

_HANDED_OUT = "/proc/sys/net/ipv4/ip_local_port_range"  # to outgoing connections: the lowest and the highest
_LOWEST, _TRIES = 15_000, 100
_MEMORY = "/dev/shm"  # noqa: S108 (a byte with a name of its own, readable by its maker alone)


def main(arguments: list[str]) -> int:
    """Start the processes of this machine and return 0 when all are done; end as the first one ended that failed."""
    # Before torch is imported: that takes seconds, and its threads must have it blocked too, so that one reads it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import api
    from torch.distributed.run import parse_args, run

    from training.processes import AGENT, STOP_FILE, StopRequest, end_like, first_failure

    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    api.get_free_port = meeting_port  # type: ignore[attr-defined]
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun would, with a warning
    os.environ[AGENT] = str(os.getpid())
    with tempfile.NamedTemporaryFile(prefix="scaleup_stop_", dir=_MEMORY if Path(_MEMORY).is_dir() else None) as byte:
        byte.write(b"\0")
        byte.flush()
        os.environ[STOP_FILE] = byte.name
        threading.Thread(target=_pass_on, args=(StopRequest(),), daemon=True).start()
        try:
            run(parse_args(arguments))  # type: ignore[no-untyped-call]
            return 0
        except ChildFailedError as error:
            code = first_failure(error)
        except SignalException as error:
            code = -int(error.sigval)
    end_like(code)
    return 1


def meeting_port() -> int:
    """Return a port that is free now and that the kernel hands out to nobody; any free one where there is none such."""
    try:
        highest = int(Path(_HANDED_OUT).read_text().split()[0]) - 1
    except (OSError, ValueError):
        highest = 0
    below = random.sample(range(_LOWEST, highest + 1), min(_TRIES, max(0, highest + 1 - _LOWEST)))
    for port in (*below, 0):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no port of this machine is free for the processes to meet at")


def _pass_on(stop: StopRequest) -> None:
    """Ask the processes of this machine to save and stop when SIGUSR1 comes."""
    while True:
        signal.sigwait({signal.SIGUSR1})
        stop.ask()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
