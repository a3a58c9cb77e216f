"""One service: a process in a session of its own, known by pid and start time, ended with everything it started."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped,unused-ignore]

from tasks.errors import ScaleupError
from tasks.stage_dir import home, read_json, write_json

# Airflow's scheduler waits for its running tasks when it is asked to end; nobody wants to wait for those here.
GRACE_SECONDS = 4.0


class ServiceFailed(ScaleupError):
    """A service did not come up, or did not go."""


@dataclass(frozen=True)
class Service:
    """What runs, and how to see that it is up: ``healthy(since)`` asks the service itself, ``since`` its start time."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    healthy: Callable[[float], bool]
    port: int | None = None

    @property
    def record(self) -> Path:
        """File that names the running process."""
        return services_folder() / f"{self.name}.json"

    @property
    def log(self) -> Path:
        """File with the service's output."""
        return services_folder() / f"{self.name}.log"


@dataclass(frozen=True)
class Running:
    """A service's process: the leader of a session, so that everything it starts can be found by the session's id."""

    name: str
    pid: int
    started: float
    child: subprocess.Popen[bytes] | None = field(default=None, repr=False, compare=False)  # where we started it

    @property
    def alive(self) -> bool:
        """Say whether this very process, not a later one of the same number, still runs."""
        if self.child is not None:
            return self.child.poll() is None
        try:
            process = psutil.Process(self.pid)
            same = bool(abs(process.create_time() - self.started) < 1.0)
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def members(self) -> list[psutil.Process]:
        """Return every living process of the session, also after its leader has died.

        Not the process group: Airflow puts each task into a group of its own, but a session they cannot leave
        unless they mean to, as a training job does, which must outlive the scheduler.
        """
        # A number that was given to somebody else in the meantime leads another session: not ours.
        if not self.alive and psutil.pid_exists(self.pid) and not _is_zombie(self.pid):
            return []
        return [p for p in psutil.process_iter() if _session(p.pid) == self.pid and not _is_zombie(p.pid)]


def services_folder() -> Path:
    """Return the folder of records and logs of all services."""
    return home() / "services"


def start(service: Service) -> Running:
    """Start a service in its own session and record it; what an earlier start left behind is ended first."""
    if left := recorded(service.name):
        stop([left])
    folder = services_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with service.log.open("ab") as log:
        process = subprocess.Popen(
            service.command,
            env=dict(service.environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    running = Running(service.name, process.pid, psutil.Process(process.pid).create_time(), process)
    write_json(service.record, {"pid": running.pid, "started": running.started, "command": list(service.command)})
    return running


def recorded(name: str) -> Running | None:
    """Return the process that was recorded under ``name``; it may be dead."""
    value: dict[str, Any] | None = read_json(services_folder() / f"{name}.json")
    return Running(name, int(value["pid"]), float(value["started"])) if value else None


def all_recorded() -> list[Running]:
    """Return every process on record, also of services that this version no longer knows."""
    found = (recorded(path.stem) for path in sorted(services_folder().glob("*.json")))
    return [running for running in found if running]


def stop(services: Iterable[Running], grace_seconds: float = GRACE_SECONDS) -> None:
    """End all given services with everything they started: SIGTERM to all at once, SIGKILL to what is left."""
    services = list(services)
    _signal_all(services, signal.SIGTERM)
    psutil.wait_procs([p for service in services for p in service.members()], timeout=grace_seconds)
    # Members may start others between a look and a signal; two rounds of SIGKILL are known to be enough, five are safe.
    for _ in range(5):
        left = [p for service in services for p in service.members()]
        if not left:
            break
        _signal_all(services, signal.SIGKILL)
        psutil.wait_procs(left, timeout=2.0)
    else:
        names = ", ".join(sorted({service.name for service in services if service.members()}))
        raise ServiceFailed(f"{names}: still running after SIGKILL; see `ps -ef`")
    for service in services:
        if service.child is not None:
            service.child.wait()
        (services_folder() / f"{service.name}.json").unlink(missing_ok=True)


def last_lines(log: Path, count: int = 15) -> str:
    """Return the end of a log, for an error message."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return "(it wrote nothing)"
    return "\n".join(f"  | {line}" for line in lines[-count:])


def _signal_all(services: Iterable[Running], number: signal.Signals) -> None:
    for service in services:
        for member in service.members():
            try:
                member.send_signal(number)
            except psutil.NoSuchProcess:
                continue


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
