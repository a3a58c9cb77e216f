"""Telling people once of a night's incidents, by the channels of ``telling.yaml``: opened, and over.

``nightly/told.json`` says what went out. A channel that fails is asked again at the next conclusion, and given up after
``tries``; it fails no night.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from tasks.config.telling import Kind, load_telling
from tasks.nightly import incidents, points
from tasks.nightly.judge import SERIES
from tasks.nightly.night import NightDir
from tasks.nightly.points import comparable
from tasks.report import words
from tasks.stage_dir import read_json, write_json
from tasks.telling.message import Message, bars


def tell(night: str, quiet: frozenset[str]) -> None:
    """Tell of every incident that nobody was told of yet; those of the cases in ``quiet`` are in quarantine."""
    telling = load_telling()
    path = points.folder() / "told.json"
    told: dict[str, dict[str, Any]] = read_json(path) or {}
    for kind, message in _messages(night, quiet, told):
        known = told.setdefault(message.key, {})
        for name in telling.tell.get(kind, ()):
            said = known.setdefault(name, {"tries": 0, "sent": False})
            if said["sent"] or said["tries"] >= telling.tries:
                continue
            said["tries"] += 1
            _send(telling.channels[name], name, message, said)
            write_json(path, told)


def _send(channel: Any, name: str, message: Message, said: dict[str, Any]) -> None:
    from tasks.telling.channels import send

    try:
        send(channel, message)
        said["sent"] = True
    except OSError as error:
        print(f"telling: {name} did not take {message.key!r} (try {said['tries']}): {error}", file=sys.stderr)


def _messages(night: str, quiet: frozenset[str], told: Mapping[str, Any]) -> Iterator[tuple[Kind, Message]]:
    for found in incidents.all_open():
        if found["case"] not in quiet and not found.get("acked"):
            yield "regression", _opened(found, night)
    for found in incidents.all_past():
        if _key(found) in told:  # an end is news only to whoever heard of the beginning
            yield "recovered", _over(found, night)


def _key(found: Mapping[str, Any]) -> str:
    return f"nightly/{incidents.name(found)}/{found['opened']}"


def _opened(found: Mapping[str, Any], night: str) -> Message:
    """Return what, how much, the curve, where to look, what to type."""
    name = incidents.name(found)
    changed = [f"{kind}: {line}" for kind, lines in (found.get("changed") or {}).items() for line in lines[:5]]
    commands = [f'I have seen it: scaleup ack {name} --because "..."']
    if found["series"] in SERIES:
        commands.append(f'This level is right: scaleup nightly accept {name} --because "..."')
    modelled = " (modelled)" if found.get("nature") == "modelled" else ""
    lines = [
        words.sentence(f"{found['series']}{modelled} {found['says']}"),
        "",
        *_curve(found),
        *changed,
        "",
        *commands,
    ]
    return Message(
        _key(found),
        f"nightly: {name} {found['says']}"[:120],
        tuple(lines),
        _links(night),
        "error",
        (),
        str(found["owner"]),
    )


def _over(found: Mapping[str, Any], night: str) -> Message:
    name, key = incidents.name(found), _key(found)
    lines = (words.sentence(f"{name}: {found['how']}"), f"It was open since {found['opened']}.")
    return Message(f"{key}/over", f"nightly: {name} is over", lines, _links(night), "info", (key,), str(found["owner"]))


def _curve(found: Mapping[str, Any]) -> list[str]:
    """Return the last forty nights as bars of text."""
    own = points.here(found["case"])
    if found["series"] not in SERIES or not own:
        return []
    seen = [point for point in own if found["series"] in point.values and not point.attempt]
    values = [point.values[found["series"]] for point in comparable(seen, seen[-1], found["series"])][-40:]
    return [f"{bars(values)} {len(values)} nights, {words.number(values[0])} to {words.number(values[-1])}", ""]


def _links(night: str) -> tuple[tuple[str, str], ...]:
    return (("report", str(NightDir(night).report)),)
