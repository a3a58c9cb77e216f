"""The trainer's end of the upload: start it, tell it of checkpoints, know how old the newest stored one is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from training.config import StoreOrders

LONGEST_SECONDS = 60.0  # for which a job that is done waits for its last upload; promotion stores what it hands over


class Uploads:
    """The process of :mod:`training.upload`, seen from the job's first process; without orders nothing."""

    def __init__(self, stage_dir: Path, orders: StoreOrders | None, record: Callable[..., None]) -> None:
        """Start it; ``record`` gets a record of each checkpoint that was stored, from a thread."""
        self._record = record
        self._stored: float | None = None  # when the trainer wrote the newest checkpoint that is stored
        self._copied: float | None = None  # and the newest that the second region has
        self._process: subprocess.Popen[str] | None = None
        if orders is None:
            return
        self._patience = min(LONGEST_SECONDS, float(orders.settings["retry_seconds"]))
        code = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, (code, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "training.upload", str(stage_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def tell(self, step: int) -> None:
        """Say that the checkpoint of a step is whole. Returns at once."""
        if self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.write(f"{step}\n")
                self._process.stdin.flush()
            except OSError:  # it died and said why; training goes on, and the ages show it
                pass

    def ages(self) -> dict[str, float]:
        """Return how old the newest checkpoint in the store, and in the second region, is; nothing before the first."""
        now = time.time()
        known = {"store_age_seconds": self._stored, "replica_age_seconds": self._copied}
        return {name: max(0.0, now - when) for name, when in known.items() if when is not None}

    def finish(self) -> None:
        """Wait for what is still due, but not for a store that is slow: that is said, and promotion does it."""
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.close()
            self._process.wait(self._patience)
        except OSError:
            pass
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            _say(f"the store did not take the last checkpoint in {self._patience:.0f} s; it lies in the stage's folder")
        self._reader.join()

    def _read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            said = json.loads(line)
            for problem in said.pop("problems"):
                _say(f"the checkpoint of step {said['step']} is not stored: {problem}")
            written, copy = said.pop("written"), said.pop("replica", None)
            if said["stored_in"]:
                self._stored = max(written, self._stored or 0.0)
                more = {} if copy is None else {"replica_step": copy["step"]}
                self._record("stored", **said, **more)
            if copy is not None:
                self._copied = copy["written"]


def _say(text: str) -> None:
    print(f"training: {text}", file=sys.stderr, flush=True)
