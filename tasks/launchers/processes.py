"""This machine's processes, told apart from others that may later bear the same number. Linux; standard library only.

A process is named by pid, start time and boot, and signalled through a pidfd, so that a reused pid is never hit. What a
job started is found by a variable in its environment, which survives a change of parent, session and process group.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

MARK = "SCALEUP_JOB"
"""Variable in the environment of all that a job started; its value is the job's name."""


def identity(pid: int) -> dict[str, Any] | None:
    """Return what names process ``pid`` for good, or None where no living process has that number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rsplit(")", 1)[1].split()  # the name before it may hold spaces and brackets
    if fields[0] in ("Z", "X"):
        return None
    return {"pid": pid, "start": int(fields[19]), "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}


def alive(record: Mapping[str, Any] | None) -> bool:
    """Say whether the very process that :func:`identity` described still lives."""
    if record is None:
        return False
    now = identity(int(record["pid"]))
    return now is not None and all(now[key] == record.get(key) for key in now)


def marked(name: str) -> list[dict[str, Any]]:
    """Return the identities of all living processes that job ``name`` started, however deep."""
    wanted = f"{MARK}={name}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # another user's, or just gone
            continue
        if wanted in variables and (record := identity(int(entry.name))) is not None:
            found.append(record)
    return found


def end(records: Iterable[Mapping[str, Any]], grace_seconds: float) -> None:
    """Ask each process to end (SIGTERM), and end by SIGKILL what is there after the grace."""
    with ExitStack() as stack:
        handles = []
        for record in records:
            try:
                handle = os.pidfd_open(int(record["pid"]))
            except ProcessLookupError:
                continue
            stack.callback(os.close, handle)
            if alive(record):  # after the open: from here on the handle means this process and no later one
                handles.append(handle)
        for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 5.0)):
            for handle in handles:
                try:
                    signal.pidfd_send_signal(handle, number)
                except ProcessLookupError:
                    continue
            handles = _still_there(handles, seconds)


def _still_there(handles: list[int], seconds: float) -> list[int]:
    """Wait until all are gone or the time is up; a pidfd becomes readable when its process ends."""
    deadline = time.monotonic() + seconds
    while handles:
        ended, _, _ = select.select(handles, [], [], max(0.0, deadline - time.monotonic()))
        if not ended:
            break
        handles = [h for h in handles if h not in ended]
    return handles


def end_job(name: str, grace_seconds: float) -> None:
    """End everything that job ``name`` started, also what is started while it is being ended."""
    for _ in range(5):
        found = marked(name)
        if not found:
            return
        end(found, grace_seconds)
