"""Whether the gates of an experiment exist, get the thresholds they take, and can be fed by its trainer.

The gates' signatures are their schema, so this reads them; the import is late because gates need pandas.
"""

from __future__ import annotations

import difflib
import inspect
import math
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from tasks.config.errors import BOUND_KEYS, BOUNDS, Problem, plain, unknown
from tasks.config.files import deep_merge
from tasks.config.trainer import CAPABILITIES, Trainer
from training.config import OPTIONAL

if TYPE_CHECKING:
    from tasks.gates.core import Gate

NEEDS_EARLIER = {
    "replay_parity": "compares the last steps of the stage before with their replay",
    "resume_parity": "compares the stage before's hand-over with what was resumed from it",
}

NEEDS_FORECAST = ("canary", "too_good")  # compare with what the stages before let expect


@dataclass(frozen=True)
class _Place:
    """A stage as gates see it: what is before it, and whether it continues that."""

    name: str
    earlier: tuple[str, ...]
    continues: bool
    trainer: Trainer | None


def gate_problems(stages: Sequence[Any], trainer: Trainer | None) -> list[Problem]:
    """Return what is wrong with the gates of all stages, given as the YAML has them (which may be malformed)."""
    problems: list[Problem] = []
    earlier: tuple[str, ...] = ()
    for index, stage in enumerate(stages):
        if not isinstance(stage, Mapping):
            continue
        alone = index == 0 or stage.get("start") == "scratch" or isinstance(stage.get("start"), Mapping)
        place = _Place(f"gpus_{stage.get('gpus')}", earlier, not alone, trainer)
        gates, over = _mapping(stage.get("gates")), _mapping(_mapping(stage.get("rehearsal")).get("gates"))
        problems += _gates(f"stages.{index}.gates", gates, place)
        problems += _gates(f"stages.{index}.rehearsal.gates", _laid_over(gates, over), place)
        earlier += (place.name,)
    return problems


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _laid_over(gates: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gates that a rehearsal changes, as they are then."""
    merged = deep_merge(gates, over)
    return {name: merged[name] for name in over}


def _gates(where: str, gates: Mapping[str, Any], place: _Place) -> Iterator[Problem]:
    """Yield what is wrong with the gates of one stage."""
    from tasks.gates import REGISTRY

    for name, chosen in gates.items():
        if name not in REGISTRY:
            yield Problem(where, unknown("gate", name, sorted(REGISTRY)))
            for close in difflib.get_close_matches(name, sorted(REGISTRY), n=1):  # its thresholds may be misspelt too
                yield from _unknown_thresholds(f"{where}.{name}", REGISTRY[close], chosen)
        elif chosen != "dropped":
            yield from _gate(f"{where}.{name}", REGISTRY[name], chosen, place)


def _gate(where: str, gate: Gate, chosen: Any, place: _Place) -> Iterator[Problem]:
    if gate.name in NEEDS_EARLIER and not place.continues:
        yield Problem(
            where,
            f"{NEEDS_EARLIER[gate.name]}, but {place.name} continues no stage; remove it or write {gate.name}: dropped",
        )
        return
    if gate.name in NEEDS_FORECAST and not place.earlier:
        text = f"compares with a forecast, but no stage comes before {place.name} to make one from; remove it"
        yield Problem(where, text)
        return
    yield from _fed(where, gate, place.trainer)
    for place_of_one, thresholds in _each(where, chosen):
        yield from _thresholds(place_of_one, gate, thresholds, place)


def _each(where: str, chosen: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the place and the thresholds of each time a gate is asked."""
    several = isinstance(chosen, list)
    for index, thresholds in enumerate(chosen if several else [chosen]):
        if thresholds is None or isinstance(thresholds, Mapping):
            yield (f"{where}.{index}" if several else where), thresholds or {}


def _fed(where: str, gate: Gate, trainer: Trainer | None) -> list[Problem]:
    if trainer is None:
        return []
    lacking = [need for need in gate.needs if not trainer.can(need)]
    if not lacking:
        return []
    what = " and ".join(f"the capability {n}" if n in CAPABILITIES else f"the field {n}" for n in lacking)
    return [Problem(where, f"needs {what}, which the trainer {trainer.name!r} lacks; write {gate.name}: dropped")]


def _thresholds(where: str, gate: Gate, chosen: Mapping[str, Any], place: _Place) -> list[Problem]:
    """Compare thresholds with the gate's keyword parameters: names, types, bounds, and stages that come earlier."""
    from tasks.gates.core import OPTIONS

    problems = list(_unknown_thresholds(where, gate, chosen))
    hints = typing.get_type_hints(gate.function, include_extras=True) | OPTIONS
    sound = {}
    for key in (key for key in chosen if key in gate.thresholds or key in OPTIONS):
        wrong = _wrong(hints.get(key, Any), chosen[key])
        if wrong is not None:
            problems.append(Problem(f"{where}.{key}", wrong))
        elif key == "reference" and chosen[key] not in place.earlier:
            problems.append(Problem(f"{where}.{key}", f"{chosen[key]!r} is no earlier stage; {_earlier(place)}"))
        else:
            sound[key] = chosen[key]
    for key, parameter in gate.thresholds.items():
        if parameter.default is inspect.Parameter.empty and key not in chosen:
            remedy = f"; {_earlier(place)}" if key == "reference" else ""
            problems.append(Problem(where, f"needs the threshold {key}{remedy}"))
    return problems + list(_between(where, gate, sound, chosen))


def _unknown_thresholds(where: str, gate: Gate, chosen: Any) -> Iterator[Problem]:
    from tasks.gates.core import OPTIONS

    there = sorted([*gate.thresholds, *OPTIONS])
    for place, thresholds in _each(where, chosen):
        yield from (Problem(place, unknown("threshold", key, there)) for key in thresholds if key not in there)


def _between(where: str, gate: Gate, sound: Mapping[str, Any], chosen: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong between thresholds that are fine each on its own, the defaults among them."""
    if gate.any_of and not any(key in chosen for key in gate.any_of):
        yield Problem(where, f"needs the threshold {' or '.join(gate.any_of)}")
    for low, high in gate.ordered:
        values = [sound.get(key, None if key in chosen else gate.thresholds[key].default) for key in (low, high)]
        if (low in sound or high in sound) and None not in values and values[0] > values[1]:
            key, verb, other = (low, "at most", high) if low in sound else (high, "at least", low)
            limit = values[1] if low in sound else values[0]
            yield Problem(f"{where}.{key}", f"must be {verb} {other}, {limit:g}, not {plain(chosen[key])}")


def _earlier(place: _Place) -> str:
    if not place.earlier:
        return f"there is none before {place.name}"
    return f"before {place.name} {'comes' if len(place.earlier) == 1 else 'come'} {', '.join(place.earlier)}"


def _wrong(hint: Any, value: Any) -> str | None:
    """Return what is wrong with a threshold's type or size, if anything."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be a finite number, not {plain(value)}"
    try:
        TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        found = error.errors()[0]
        if found["type"] in BOUNDS:
            return f"must be {BOUNDS[found['type']]} {found['ctx'][BOUND_KEYS[found['type']]]:g}, not {plain(value)}"
        return f"must be {_meant(hint)}, not {plain(value)}"
    return None


def _meant(hint: Any) -> str:
    """Say in words what type a threshold has."""
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(str, typing.get_args(hint)))
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    if parts:  # Annotated[float, Gt(0)], or float | None
        return _meant(parts[0])
    return {float: "a number", int: "a whole number", str: "text", bool: "true or false"}.get(hint, str(hint))


def capability_problems(trainer: Trainer) -> list[Problem]:
    """Return the capabilities that do not exist, and what the optional commands lack."""
    there = sorted([*CAPABILITIES, *OPTIONAL])
    problems = [
        Problem("trainer.capabilities", unknown("capability", name, there, "capabilities"))
        for name in sorted(trainer.capabilities)
        if name not in there
    ]
    if "evaluate" in trainer.capabilities and trainer.evaluate is None:
        said = "evaluate is a command; say it as evaluate: [program, ..., '{checkpoint}'] beside the capabilities"
        problems.append(Problem("trainer.capabilities", said))
    for key, place in (("evaluate", "{checkpoint}"), ("checkpoints", "{stage_dir}")):
        command = getattr(trainer, key)
        if command is not None and not any(place in part for part in command):
            problems.append(Problem(f"trainer.{key}", f"names no {place}, so it cannot know which is meant; add it"))
    return problems
