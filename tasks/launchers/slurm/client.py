"""Slurm's own commands as text, run here or on a login node: ``sbatch``, ``squeue``, ``scancel``, ``scontrol`` ...

A controller that does not answer is no answer (:class:`Silent`), never a state of a job. The four text formats that
are parsed here are the same from Slurm 20.02 on; its JSON has changed four times.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CLIENT_SECONDS = 60.0  # a client gives up by itself sooner: MessageTimeout is 10 s by default

# Of this process's variables, only these reach Slurm's clients, and by sbatch the job: an orchestrator's own hold
# passwords, and a person's SBATCH_* and SQUEUE_FORMAT would change what is asked and how it is answered.
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SLURM_CONF")

_SILENT = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Transport endpoint",
    "Connection refused",
    "Connection timed out",
    "Connection closed",
    "Connection reset",
    "Unable to establish controller machine",
    "Slurm backup controller in standby mode",
    "Munge encode failed",
    "Protocol authentication error",
    "ssh:",
    "kex_exchange_identification",
    "mux_client",
)


class Silent(Exception):
    """The cluster gave no answer; nothing is known, and what was asked may have been done all the same."""


class Refused(Exception):
    """The cluster answered, and said no; the message is Slurm's own."""


@dataclass(frozen=True)
class Client:
    """Runs a command of Slurm's and returns what it prints."""

    ssh: tuple[str, ...] = ()  # options of ssh, and last the login node's host

    def run(self, *command: str, text: str = "", seconds: float = CLIENT_SECONDS) -> str:
        """Return the standard output of a command that is given ``text``; raise Silent or Refused."""
        name = next(word for word in command if word != "env" and "=" not in word)
        try:
            done = subprocess.run(
                self._here(command), input=text, capture_output=True, text=True, errors="replace",
                timeout=seconds, env=self._variables(),
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise Silent(f"{name} did not answer within {seconds:g} s") from error
        except OSError as error:
            raise Silent(f"{name} cannot be run here: {error.strerror}; is Slurm's client installed?") from error
        if done.returncode == 0:
            return done.stdout
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        if any(words in said for words in _SILENT) or (self.ssh and done.returncode == 255):
            raise Silent(f"{name}: {said}")
        raise Refused(f"{name}: {said}")

    def _here(self, command: tuple[str, ...]) -> list[str]:
        if not self.ssh:
            return list(command)
        # A socket's path has 108 bytes at most, so it is not below a run's folder. ssh takes the first value that it is
        # told, so a site's own options come before these.
        own = Path.home() / ".ssh"
        own.mkdir(mode=0o700, exist_ok=True)
        options = ("BatchMode=yes", "ControlMaster=auto", f"ControlPath={own}/scaleup_%C", "ControlPersist=60")
        said = [word for option in options for word in ("-o", option)]
        return ["ssh", *self.ssh[:-1], *said, self.ssh[-1], "--", shlex.join(command)]

    def _variables(self) -> Mapping[str, str]:
        kept = (*KEPT, "SSH_AUTH_SOCK") if self.ssh else KEPT
        return {name: os.environ[name] for name in kept if name in os.environ}
