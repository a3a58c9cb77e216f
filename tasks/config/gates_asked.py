"""Whether the gates of an experiment exist, get the thresholds they take, and can be fed by its trainer.

The gates' signatures are their schema, so this reads them; the import is late because gates need pandas.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from tasks.config.errors import Problem, plain, unknown
from tasks.config.experiment import CAPABILITIES, Trainer
from tasks.config.files import deep_merge
from training.config import OPTIONAL

if TYPE_CHECKING:
    from tasks.gates.core import Gate

NEEDS_EARLIER = {
    "replay_parity": "compares the last steps of the stage before with their replay",
    "resume_parity": "compares the stage before's hand-over with what was resumed from it",
}


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
        elif chosen != "dropped":
            yield from _gate(f"{where}.{name}", REGISTRY[name], chosen, place)


def _gate(where: str, gate: Gate, chosen: Any, place: _Place) -> Iterator[Problem]:
    if gate.name in NEEDS_EARLIER and not place.continues:
        yield Problem(
            where,
            f"{NEEDS_EARLIER[gate.name]}, but {place.name} continues no stage; remove it or write {gate.name}: dropped",
        )
        return
    yield from _fed(where, gate, place.trainer)
    several = isinstance(chosen, list)
    for index, thresholds in enumerate(chosen if several else [chosen]):
        if thresholds is None or isinstance(thresholds, Mapping):
            yield from _thresholds(f"{where}.{index}" if several else where, gate, thresholds or {}, place)


def _fed(where: str, gate: Gate, trainer: Trainer | None) -> list[Problem]:
    if trainer is None:
        return []
    lacking = [need for need in gate.needs if not trainer.can(need)]
    if not lacking:
        return []
    what = " and ".join(f"the capability {n}" if n in CAPABILITIES else f"the field {n}" for n in lacking)
    return [Problem(where, f"needs {what}, which the trainer {trainer.name!r} lacks; write {gate.name}: dropped")]


def _thresholds(where: str, gate: Gate, chosen: Mapping[str, Any], place: _Place) -> list[Problem]:
    """Compare thresholds with the gate's keyword parameters: names, types, and that stages named come earlier."""
    problems = []
    hints = typing.get_type_hints(gate.function)
    for key, value in chosen.items():
        if key not in gate.thresholds:
            problems.append(Problem(where, unknown("threshold", key, sorted(gate.thresholds))))
        elif (wrong := _type(hints.get(key, Any), value)) is not None:
            problems.append(Problem(f"{where}.{key}", wrong))
        elif isinstance(value, str) and key == "reference" and value not in place.earlier:
            problems.append(Problem(f"{where}.{key}", f"{value!r} is no earlier stage; {_earlier(place)}"))
    for key, parameter in gate.thresholds.items():
        if parameter.default is inspect.Parameter.empty and key not in chosen:
            remedy = f"; {_earlier(place)}" if key == "reference" else ""
            problems.append(Problem(where, f"needs the threshold {key}{remedy}"))
    return problems


def _earlier(place: _Place) -> str:
    if not place.earlier:
        return f"there is none before {place.name}"
    return f"before {place.name} {'comes' if len(place.earlier) == 1 else 'come'} {', '.join(place.earlier)}"


def _type(hint: Any, value: Any) -> str | None:
    """Return what is wrong with a threshold's type, if anything."""
    try:
        TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError:
        name = getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)
        said = {"float": "a number", "int": "a whole number", "str": "text", "bool": "true or false"}.get(name, name)
        return f"must be {said}, not {plain(value)}"
    if isinstance(value, float) and value != value:
        return "must be a finite number, not nan"
    return None


def capability_problems(trainer: Trainer) -> list[Problem]:
    """Return the capabilities that do not exist."""
    there = sorted([*CAPABILITIES, *OPTIONAL])
    return [
        Problem("trainer.capabilities", unknown("capability", name, there, "capabilities"))
        for name in sorted(trainer.capabilities)
        if name not in there
    ]
