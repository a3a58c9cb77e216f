"""All services as one: started side by side, mended when one dies, ended together."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from tasks.errors import ScaleupError
from tasks.services import ports, process
from tasks.services.airflow_api import wait_seconds
from tasks.services.process import Running, Service, ServiceFailed, last_lines, services_folder

START_SECONDS = 180.0
_LOOK_SECONDS = 0.25
# A service that dies this often is broken, not unlucky; starting it for ever would hide that.
_MENDS = 20

Tell = Callable[[str], None]


@contextmanager
def only_one() -> Iterator[None]:
    """Hold the folder's services alone, for as long as the block lasts; raise where somebody else does."""
    services_folder().mkdir(parents=True, exist_ok=True)
    with (services_folder() / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ScaleupError(
                f"a demo already runs from {services_folder().parent}; end it there with Ctrl-C, "
                "or set SCALEUP_HOME to another folder for a second one"
            ) from error
        yield


@dataclass
class Together:
    """The services of one demo or test session."""

    services: Sequence[Service]
    tell: Tell = lambda line: None
    waiting: Tell = lambda line: None  # told at each look what is waited for; empty when nothing is any more
    # Around each start: a signal waits until the new process is recorded.
    shield: Callable[[], AbstractContextManager[None]] = nullcontext
    running: dict[str, Running] = field(default_factory=dict)
    mends: int = 0

    def start(self) -> None:
        """Start all of them; return when each has answered, raise :class:`ServiceFailed` when one cannot."""
        self.launch_all()
        self.wait_healthy()

    def launch_all(self) -> None:
        """Start all of them without waiting."""
        for service in self.services:
            self.launch(service)

    def launch(self, service: Service) -> None:
        """Start one service without waiting for it."""
        if service.port is not None and not ports.is_free(service.port):
            left = process.recorded(service.name)
            if left:
                process.stop([left])
            if not ports.is_free(service.port):
                raise ServiceFailed(f"port {service.port} is taken by {ports.holder(service.port)}")
        self._start(service)

    def _start(self, service: Service) -> None:
        with self.shield():
            self.running[service.name] = process.start(service)

    def wait_for(self, service: Service, done: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait until one service, launched before, has come so far as ``done`` says."""
        self._wait({service.name: service}, lambda service: done(), seconds)

    def wait_healthy(self, seconds: float = START_SECONDS) -> None:
        """Wait until every service has answered since its last start, and tell of each."""

        def up(service: Service) -> bool:
            answered = service.healthy(self.running[service.name].started)
            if answered:
                self.tell(f"{service.name} is up")
            return answered

        self._wait({service.name: service for service in self.services if service.name in self.running}, up, seconds)

    def _wait(self, waiting: dict[str, Service], done: Callable[[Service], bool], seconds: float) -> None:
        """Look until ``done`` says so of each; raise :class:`ServiceFailed` where one died or the time is up."""
        began = time.monotonic()
        try:
            while waiting:
                for service in list(waiting.values()):
                    if done(service):
                        del waiting[service.name]
                    else:
                        self._still_starting(service)
                waited = time.monotonic() - began
                if waiting and waited > seconds:
                    service = next(iter(waiting.values()))
                    names, end = ", ".join(waiting), last_lines(service.log)
                    raise ServiceFailed(f"{names}: no answer after {seconds:.0f} s; {service.log} ends:\n{end}")
                if waiting:
                    self.waiting(f"{', '.join(waiting)}, {waited:.0f} s")
                    wait_seconds(_LOOK_SECONDS)
        finally:
            self.waiting("")

    def _still_starting(self, service: Service) -> None:
        if not self.running[service.name].alive:
            said = last_lines(service.log)
            raise ServiceFailed(f"{service.name} ended while starting; {service.log} ends:\n{said}")

    def mend(self) -> list[str]:
        """Start again what has died, without waiting for it to come up; return the names."""
        dead = [s for s in self.services if s.name in self.running and not self.running[s.name].alive]
        for service in dead:
            self.mends += 1
            if self.mends > _MENDS:
                raise ServiceFailed(
                    f"{service.name} died again and again; {service.log} ends:\n{last_lines(service.log)}"
                )
            self.tell(f"{service.name} died and is started again")
            # Its orphans go first: a task that outlives its scheduler would be run twice.
            process.stop([self.running[service.name]], grace_seconds=0.5)
            self._start(service)
        return [service.name for service in dead]

    def stop(self) -> None:
        """End all of them and everything they started, and make sure that their ports are free."""
        process.stop(self.running.values())
        self.running.clear()
        for service in self.services:
            if service.port is not None and not ports.is_free(service.port):
                raise ServiceFailed(
                    f"{service.name} is gone, but port {service.port} is held by {ports.holder(service.port)}"
                )
