"""Jobs whose processes an agent starts: torchrun itself, or the one of training.torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from running import ROOT

SECONDS = 90.0  # a busy machine imports torch slowly, and each process does it
TORCHRUN = ("-m", "torch.distributed.run")
OURS = ("-m", "training.torchrun")


def agent(how: tuple[str, ...], folder: Path, *options: str, program: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start an agent that starts the trainer on a stage folder, or another ``program``."""
    outside = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    around = {name: value for name, value in os.environ.items() if name not in outside}
    around |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, *how, *options, *(program or ("-m", "training.train", str(folder)))]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=ROOT, env=around, text=True, start_new_session=True, **pipes)


def end(started: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for an agent; return how it ended and what it and its processes said."""
    said, _ = started.communicate(timeout=SECONDS)
    return started.returncode, said


def left(started: subprocess.Popen[str]) -> list[int]:
    """Return which processes of an agent's session live, itself left out."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue  # just gone
        if int(session) == started.pid and state != "Z" and int(stat.parent.name) != started.pid:
            found.append(int(stat.parent.name))
    return found
