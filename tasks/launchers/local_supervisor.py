"""The small process that stays beside a local job: ``python -m tasks.launchers.local_supervisor FOLDER``.

It belongs to no one (own session, no parent), so the job outlives whoever submitted it. It starts the command, starts
it again after a death by signal (the machine's fault) as long as that gets somewhere, never after a nonzero exit code
(the program's fault), ends it when its hours are up, and writes ``exit.json``. A trainer that answers SIGUSR1 may save
before it is ended. Standard library only: it must be up in a blink.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.launchers.exit_record import CANCEL, EXIT, read, write_whole
from tasks.launchers.processes import MARK, end_job, identity
from tasks.launchers.secret_file import SecretsUnusable, read_secrets

ORDER, SUPERVISOR = "order.json", "supervisor.json"
_PR_SET_PDEATHSIG = 1
_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}


class Supervisor:
    """One job from its start to ``exit.json``."""

    def __init__(self, folder: Path, order: Mapping[str, Any]) -> None:
        """Take the order as ``submit`` wrote it."""
        self.folder, self.order = folder, order
        self.started = time.time()
        self.deadline: float = self.started + order["hours"] * 3600
        self.restarts = 0
        self.offset, self.furthest = 0, 0  # how far metrics have been read, and the highest step seen there

    def register(self) -> None:
        """Say which process this is and how often it has started the job again."""
        who = identity(os.getpid()) or {}
        write_whole(self.folder / SUPERVISOR, {**who, "started": self.started, "restarts": self.restarts})

    def run(self) -> None:
        """Start the job, again and again while that makes sense, and write down how it ended."""
        fruitless = 0
        for command in self.order.get("before", ()):
            ended = self.first(command)
            if ended in ("cancelled", "hours"):
                return self.finish(ended)
        while not (self.folder / CANCEL).exists():
            before = self.progress()
            self.trim_torn_line()
            try:
                child = self.start(self.order["command"])
            except (OSError, SecretsUnusable) as error:
                return self.finish("cannot_start", code=127, detail=str(error))
            saves = bool(self.order["sigusr1"])
            ended = self.wait(child, self.saving_begins() if saves else self.deadline, saves=saves)
            end_job(self.order["name"], self.order["grace_seconds"])  # children that outlived their parent
            if ended in ("cancelled", "hours"):
                return self.finish(ended, code=child.returncode if child.returncode >= 0 else None)
            if child.returncode >= 0:
                return self.finish("program" if child.returncode else "finished", code=child.returncode)
            number = -child.returncode
            if self.progress() != before:
                fruitless = 0
            elif fruitless >= self.order["restarts"]:
                return self.finish("no_progress", number=number, fruitless=fruitless)
            else:
                fruitless += 1
            if self.restarts >= self.order["max_restarts"]:
                return self.finish("max_restarts", number=number)
            self.restarts += 1
            self.register()
            self.say(f"the job died by {_name(number)}; restart {self.restarts} of {self.order['max_restarts']}")
        return self.finish("cancelled")

    def first(self, command: Sequence[str]) -> str:
        """Run a command that goes before the job's own; whatever becomes of it, the job begins. Say how it ended."""
        if (self.folder / CANCEL).exists():
            return "cancelled"
        try:
            child = self.start(command)
        except (OSError, SecretsUnusable) as error:
            self.say(f"{' '.join(command)} could not be started: {error}")
            return "cannot_start"
        limit = time.time() + 3600 * float(self.order["before_hours"])
        ended = self.wait(child, min(limit, self.deadline))
        end_job(self.order["name"], self.order["grace_seconds"])
        if ended == "hours" and limit < self.deadline:
            hours = self.order["before_hours"]
            self.say(f"{' '.join(command)} took longer than {hours:g} h; the job goes on without it")
            return "too_long"
        if ended == "exited" and child.returncode:
            self.say(f"{' '.join(command)} ended with {child.returncode}; the job goes on without it")
        return ended

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own; it dies with this process, so that none is left unwatched."""
        order = self.order
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "_AIRFLOW"))}
        variables |= order["variables"]
        variables |= read_secrets(order["secrets_file"], order["secrets"])
        variables[MARK] = order["name"]
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                command, cwd=order["cwd"], env=variables, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, preexec_fn=_die_with_parent,
            )  # fmt: skip

    def wait(self, child: subprocess.Popen[bytes], until: float, *, saves: bool = False) -> str:
        """Wait for the child's end, a SIGTERM, or ``until``; say which it was. A child that ``saves`` may do so."""
        while child.poll() is None:
            asked = _terminated(until - time.time())
            if asked or time.time() >= until:
                if saves and not asked:
                    self.let_save(child, self.deadline - time.time())
                elif saves and (read(self.folder / CANCEL) or {}).get("save", True):
                    self.let_save(child, self.order["save_seconds"])
                end_job(self.order["name"], self.order["grace_seconds"])
                child.wait()
                return "cancelled" if asked else "hours"
        return "exited"

    def saving_begins(self) -> float:
        """Return when to ask for the last checkpoint: inside the job's hours, but not in their first half."""
        half = (self.started + self.deadline) / 2
        return max(half, self.deadline - float(self.order["save_seconds"]))

    def let_save(self, child: subprocess.Popen[bytes], seconds: float) -> None:
        """Send SIGUSR1 to the command's own process alone, and wait for its end.

        Its children would die of the signal where they have no handler, a data loader's say; they are its own to tell.
        """
        self.say(f"it is asked to save and exit (SIGUSR1) and has {seconds:.0f} s")
        child.send_signal(signal.SIGUSR1)
        deadline = time.time() + seconds
        while child.poll() is None and time.time() < deadline:
            if _terminated(deadline - time.time()) and not (read(self.folder / CANCEL) or {}).get("save", True):
                return  # meanwhile it was cancelled by somebody who does not want its state

    def progress(self) -> tuple[int, frozenset[str]]:
        """Return the highest step recorded and the checkpoints that exist: both stand still where nothing is gained."""
        try:
            with open(self.order["metrics"], "rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            data = b""
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.splitlines():
            try:
                self.furthest = max(self.furthest, int(json.loads(line)["step"]))
            except (ValueError, KeyError, TypeError):
                continue
        try:
            return self.furthest, frozenset(os.listdir(self.order["checkpoints"]))
        except FileNotFoundError:
            return self.furthest, frozenset()

    def trim_torn_line(self) -> None:
        """Cut the half line that a death left at the end of metrics, before the next try appends to it."""
        path = Path(self.order["metrics"])
        if not path.exists():
            return
        with path.open("rb+") as file:
            data = file.read()
            file.truncate(data.rfind(b"\n") + 1)

    def finish(
        self, reason: str, *, code: int | None = None, number: int | None = None, detail: str = "", fruitless: int = 0
    ) -> None:
        """Write ``exit.json``: the end of this job, for whoever asks."""
        signal_name = _name(number) if number else None
        record: dict[str, Any] = {"reason": reason, "code": code, "signal": signal_name, "detail": detail}
        record |= {"restarts": self.restarts, "fruitless": fruitless, "started": self.started, "time": time.time()}
        self.say(f"the job is over: {reason} {detail}".rstrip())
        write_whole(self.folder / EXIT, record)

    def say(self, sentence: str) -> None:
        """Add a line of our own to the job's log."""
        with contextlib.suppress(OSError), (self.folder / "log.txt").open("a") as log:  # a full disk must not end us
            log.write(f"[scaleup] {sentence}\n")


def _terminated(seconds: float) -> bool:
    """Wait so long for a signal, an hour at most; say whether it was SIGTERM (SIGCHLD tells of a child's end)."""
    got = signal.sigtimedwait(_SIGNALS, max(0.0, min(seconds, 3600.0)))
    return got is not None and got.si_signo == signal.SIGTERM


def _name(number: int) -> str:
    return signal.Signals(number).name


def _die_with_parent() -> None:
    """In the child before exec: end when the supervisor ends, and take signals again that the supervisor waits for."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


_libc = ctypes.CDLL(None)  # loaded before the fork, where only little may be done


def supervise(folder: Path) -> None:
    """Run the folder's order unless another supervisor has taken it; whoever submitted reads our one line of answer."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    lock = (folder / "supervisor.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _answer("already running")
    if (folder / SUPERVISOR).exists() or (folder / EXIT).exists():
        return _answer("already ran")
    order = read(folder / ORDER)
    if order is None:
        return _answer(f"no {ORDER} in {folder}")
    supervisor = Supervisor(folder, order)
    supervisor.register()
    _answer("started", folder / "log.txt")
    supervisor.run()


def _answer(line: str, log: Path | None = None) -> None:
    """Tell the submitter, who may be gone, and let go of its pipes; our own last words go to the log."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, line.encode())
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), 2)


def main() -> int:
    """Leave the submitter's family, then supervise."""
    if os.fork() == 0:
        supervise(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
