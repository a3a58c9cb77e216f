"""Telling people, once: what happened in a run and was not told yet goes out by the channels of ``telling.yaml``.

Nothing here may harm a run: a channel that fails is written down, asked again at the next look, and given up after
``tries``. Killed between a message and its mark, it is sent again: twice is better than never.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from tasks.config.telling import Channel, Telling, load_telling
from tasks.errors import ScaleupError
from tasks.stage_dir import RunDir, read_json, write_json

_ROBUST = (OSError, ScaleupError, ValueError, KeyError, TypeError)


def tell(run: RunDir) -> list[str]:
    """Tell what is new in a run; return a line for each message that went out or did not."""
    try:
        telling = load_telling()
        if not telling.channels or not telling.tell:
            return []
        return _tell(run, telling)
    except _ROBUST as error:
        print(f"telling: nobody was told of {run.experiment}/{run.run_id}: {error}", file=sys.stderr)
        return []


def try_channel(name: str, channel: Channel, owner: str) -> None:
    """Send a message that says it is a trial; raise ScaleupError where it did not get through."""
    from tasks.telling.channels import send
    from tasks.telling.message import Message

    lines = ("This is a trial of a channel of telling.yaml. Nothing happened.",)
    trial = Message(f"trial/{time.time():.0f}", f"a trial of channel {name}", lines, (), "warning", (), owner)
    try:
        send(channel, trial)
    except OSError as error:
        raise ScaleupError(f"{name} did not take it: {error}") from error


def _tell(run: RunDir, telling: Telling) -> list[str]:
    from tasks.telling.events import events

    with run.stage(".telling").locked("told"):  # a look and a report may come at once
        path = run.path / "told.json"
        told: dict[str, dict[str, Any]] = read_json(path) or {}
        lines = []
        for event in events(run, telling.checkpoint_hours):
            wanted = telling.tell.get(event.kind, ())
            known = told.setdefault(event.key, {"kind": event.kind, "stage": event.stage.name, "time": time.time()})
            message = None
            for name in wanted:
                said = known.setdefault("channels", {}).setdefault(name, {"tries": 0, "sent": None})
                if said["sent"] is not None or said["tries"] >= telling.tries:
                    continue
                if message is None:
                    message = _message(event, told)
                lines.append(_send(name, telling.channels[name], message, said))
                write_json(path, told)
        return lines


def _message(event: Any, told: dict[str, dict[str, Any]]) -> Any:
    from tasks.telling.message import message_of

    earlier = [key for key, known in told.items() if known["stage"] == event.stage.name and key != event.key]
    frozen = read_json(event.stage.run.recipe) or {}
    return message_of(event, earlier, str(frozen.get("experiment", {}).get("owner", "")))


def _send(name: str, channel: Channel, message: Any, said: dict[str, Any]) -> str:
    from tasks.telling.channels import send

    said["tries"] += 1
    try:
        send(channel, message)
    except OSError as error:
        said["error"] = str(error)
        line = f"telling: {name} did not take {message.key!r} (try {said['tries']}): {error}"
        print(line, file=sys.stderr)
        return line
    said["sent"] = time.time()
    return f"told {name}: {message.subject}"
