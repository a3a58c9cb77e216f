"""Whether the gates of an experiment exist, get the thresholds they take, and can be fed by its trainer.

The gates' signatures are their schema, so this reads them; the import is late because gates need pandas.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from tasks.config_errors import Problem, plain, unknown
from tasks.experiment_config import CAPABILITIES, Trainer
from training.config import OPTIONAL

if TYPE_CHECKING:
    from tasks.gates.core import Gate

NEEDS_EARLIER = {
    "replay_parity": "compares the last steps of the stage before with their replay",
    "resume_parity": "compares the stage before's hand-over with what was resumed from it",
}
_STAGE_NAME = re.compile(r"gpus_\d+")


def gate_problems(
    stages: Sequence[Any], trainer: Trainer | None, prefix: str = "stages"
) -> list[Problem]:
    """Return what is wrong with the gates of all stages, given as the YAML has them."""
    problems = []
    earlier: list[str] = []
    for index, stage in enumerate(stages):
        if not isinstance(stage, Mapping):
            continue
        name = f"gpus_{stage.get('gpus')}"
        continues = index > 0 and stage.get("start", "continue") == "continue"
        for key, rehearsed in (("gates", False), ("rehearsal", True)):
            block = stage.get(key)
            gates = block.get("gates") if rehearsed and isinstance(block, Mapping) else block if not rehearsed else None
            if not isinstance(gates, Mapping):
                continue
            where = f"{prefix}.{index}.{'rehearsal.gates' if rehearsed else 'gates'}"
            merged = {**_of(stage.get("gates"))}
            for gate_name, chosen in gates.items():
                below = merged.get(gate_name) if rehearsed else None
                if isinstance(below, Mapping) and isinstance(chosen, Mapping):
                    chosen = {**below, **chosen}
                problems += _gate(where, str(gate_name), chosen, name, earlier, continues, trainer)
        earlier.append(name)
    return problems


def _of(gates: Any) -> Mapping[str, Any]:
    return gates if isinstance(gates, Mapping) else {}


def _gate(
    where: str, name: str, chosen: Any, stage: str, earlier: list[str], continues: bool, trainer: Trainer | None
) -> list[Problem]:
    """Return what is wrong with one gate of one stage."""
    from tasks.gates import REGISTRY

    if name not in REGISTRY:
        return [Problem(where, unknown("gate", name, REGISTRY))]
    gate = REGISTRY[name]
    if chosen == "dropped":
        return []
    if name in NEEDS_EARLIER and not continues:
        reason = f"{NEEDS_EARLIER[name]}, but {stage} continues no stage; remove it or write {name}: dropped"
        return [Problem(f"{where}.{name}", reason)]
    problems = _fed(f"{where}.{name}", gate, trainer)
    if chosen is None or isinstance(chosen, Mapping):
        problems += _thresholds(f"{where}.{name}", gate, chosen or {}, stage, earlier)
    return problems


def _fed(where: str, gate: Gate, trainer: Trainer | None) -> list[Problem]:
    if trainer is None:
        return []
    lacking = [need for need in gate.needs if not trainer.can(need)]
    if not lacking:
        return []
    what = " and ".join(f"the capability {n}" if n in CAPABILITIES else f"the field {n}" for n in lacking)
    return [Problem(where, f"needs {what}, which the trainer {trainer.name!r} lacks; write {gate.name}: dropped")]


def _thresholds(where: str, gate: Gate, chosen: Mapping[str, Any], stage: str, earlier: list[str]) -> list[Problem]:
    """Compare thresholds with the gate's keyword parameters: names, types, and that stages named come earlier."""
    problems = []
    hints = typing.get_type_hints(gate.function)
    for key, value in chosen.items():
        if key not in gate.thresholds:
            problems.append(Problem(where, unknown("threshold", key, gate.thresholds)))
        elif (wrong := _type(hints.get(key, Any), value)) is not None:
            problems.append(Problem(f"{where}.{key}", wrong))
        elif isinstance(value, str) and _STAGE_NAME.fullmatch(value) and value not in earlier:
            there = f"the stages before {stage} are {', '.join(earlier)}" if earlier else f"no stage is before {stage}"
            problems.append(Problem(f"{where}.{key}", f"{value!r} is no earlier stage; {there}"))
    for key, parameter in gate.thresholds.items():
        if parameter.default is inspect.Parameter.empty and key not in chosen:
            problems.append(Problem(where, f"needs the threshold {key}"))
    return problems


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
    there = [*CAPABILITIES, *OPTIONAL]
    return [
        Problem("trainer.capabilities", unknown("capability", name, there, "capabilities"))
        for name in sorted(trainer.capabilities)
        if name not in there
    ]
