"""Jobs whose processes an agent starts: torchrun itself, or the one of training.torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from running import ROOT

from tasks.launchers.processes import MARK, end_job, marked

SECONDS = 90.0  # a busy machine imports torch slowly, and each process does it
TORCHRUN = ("-m", "torch.distributed.run")
OURS = ("-m", "training.torchrun")


class Agent:
    """An agent that starts the trainer on a stage folder, or another ``program``."""

    def __init__(self, how: tuple[str, ...], folder: Path, *options: str, program: tuple[str, ...] = ()) -> None:
        self.mark = f"test.{uuid4().hex}"
        outside = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        around = {name: value for name, value in os.environ.items() if name not in outside}
        around |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", MARK: self.mark}
        command = [sys.executable, *how, *options, *(program or ("-m", "training.train", str(folder)))]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, cwd=ROOT, env=around, text=True, **pipes)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def started(self) -> list[int]:
        """The processes that it started, and they; itself left out."""
        return [found["pid"] for found in marked(self.mark) if found["pid"] != self.pid]

    def end(self) -> tuple[int, str]:
        """Wait until it ended; return how, and what it and its processes said."""
        said, _ = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, said


@contextmanager
def agents(*each: Agent) -> Iterator[list[Agent]]:
    """End all that agents started when the block is left, however it is."""
    try:
        yield list(each)
    finally:
        for agent in each:
            end_job(agent.mark, 0.0)
            if agent.process.poll() is None:
                agent.end()
            agent.process.stdout.close()
