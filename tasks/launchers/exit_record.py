"""How a job ended: ``exit.json`` of an attempt's folder, written whole by whatever stood beside the job."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.launchers import Job, JobState, State

EXIT, CANCEL = "exit.json", "cancel.json"

REASONS = {
    "finished": "finished",
    "program": "the program ended with exit code {code}",
    "cannot_start": "the command could not be started: {detail}",
    "hours": "its hours were up",
    "cancelled": "cancelled",
    "no_progress": "it died by {signal} after {fruitless} restarts in a row without a new step or checkpoint",
    "max_restarts": "it died by {signal} and had been started again {restarts} times already",
    "lost": "{detail}",
}
_STATES: dict[str, State] = {"finished": "succeeded", "cancelled": "cancelled", "lost": "lost"}


def ended(job: Job) -> JobState | None:
    """Return how the job ended, as its exit record says; None where there is none yet."""
    record = read(Path(job.folder) / EXIT)
    if record is None:
        return None
    reason = REASONS[record["reason"]].format(**record)
    state = _STATES.get(record["reason"], "failed")
    return JobState(state, reason, record["code"], record["restarts"], record["started"], str(job.log))


def write_whole(path: Path, value: Mapping[str, Any] | str) -> None:
    """Write JSON, or a text as it is, so that a reader sees all of it or nothing."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w") as file:
        if isinstance(value, str):
            file.write(value)
        else:
            json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def read(path: Path) -> dict[str, Any] | None:
    """Return the object in ``path``, or None where there is no such file."""
    try:
        value: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return value
