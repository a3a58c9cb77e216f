"""What is wrong in a configuration file, said in the user's words: all problems at once, each with its place."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from tasks.errors import ConfigInvalid

TAG = "="  # marks the names of union members in pydantic's locations, which no user wrote


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: ``path`` as in the YAML (``stages.1.gates``); ``text``: what, the value, a remedy."""

    path: str
    text: str

    def __str__(self) -> str:
        """The line a user reads."""
        return f"{self.path}: {self.text}" if self.path else self.text


def invalid(path: Path, kind: str, problems: Iterable[Problem], extends: str | None = None) -> ConfigInvalid:
    """Return the error for a file: first its name, then one indented line a problem, none twice."""
    lines = dict.fromkeys(f"  {problem}" for problem in problems)
    origin = f" (extends {extends})" if extends else ""
    return ConfigInvalid("\n".join([f"{shown(path)}{origin} is not a valid {kind}:", *lines]))


def shown(path: Path) -> str:
    """Return a path as a user would type it: relative to the working folder where it lies inside."""
    try:
        return str(path.absolute().relative_to(Path(os.getcwd())))
    except ValueError:
        return str(path)


def absent(path: Path, kind: str, names: Sequence[str]) -> ConfigInvalid:
    """Return the error for a file that is not there, with the names of those that are."""
    return ConfigInvalid(f"{shown(path)} does not exist: {unknown(kind, path.stem, names)}")


def unknown(what: str, value: object, names: Iterable[str], plural: str | None = None) -> str:
    """Say that a name is not known, which is the closest, and which there are, in the order given."""
    there = list(names)
    close = difflib.get_close_matches(str(value), there, n=1, cutoff=0.6)
    guess = f"did you mean {close[0]}? " if close and len(there) > 1 else ""
    listed = f"the {plural or what + 's'} are {', '.join(there)}" if there else "there is no other"
    if len(there) == 1:
        listed = f"the only {what} is {there[0]}"
    return f"unknown {what} {value!r}; {guess}{listed}"


def from_pydantic(
    details: Sequence[ErrorDetails], model: type[BaseModel], prefix: tuple[str | int, ...] = ()
) -> list[Problem]:
    """Translate what pydantic found in ``model``; ``prefix`` is where that model stands in the file."""
    found = []
    for detail in details:
        if detail["type"] == "too_short" and detail["input"]:
            continue  # pydantic counts only the elements that are well; what is wrong with the others is said of them
        location = tuple(part for part in detail["loc"] if not str(part).startswith(TAG))
        place = location[:-1] if detail["type"] == "extra_forbidden" else location
        found.append(Problem(dotted(prefix + place), _sentence(detail, model, _untagged_end(detail["loc"]))))
    return found


def _untagged_end(location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return a location that ends with a name or an index of the file, whatever union member was tried there."""
    return _untagged_end(location[:-1]) if location and str(location[-1]).startswith(TAG) else location


def dotted(location: Iterable[str | int]) -> str:
    """Join a location to ``stages.1.batch_sequences``."""
    return ".".join(str(part) for part in location)


def _sentence(detail: ErrorDetails, model: type[BaseModel], location: tuple[str | int, ...]) -> str:
    """Return what is wrong, the value, and what would be right, for one of pydantic's error types."""
    kind, value, limits = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown("key", location[-1], sorted(keys_of(_model_at(model, location[:-1]))))
    meaning = _meaning(model, location)
    if kind == "missing":
        return f"is missing ({meaning})" if meaning else "is missing"
    if kind in BOUNDS:
        return f"must be {BOUNDS[kind]} {limits[BOUND_KEYS[kind]]:g}, not {plain(value)}"
    if kind in _WANTED:
        return f"must be {_WANTED[kind]}, not {plain(value)}{_hint(kind, value)}"
    if kind == "literal_error":
        return f"must be {str(limits['expected']).replace(chr(39), '')}, not {plain(value)}"
    if kind == "string_pattern_mismatch":
        return f"must be {meaning}, not {plain(value)}"
    if kind in ("too_short", "string_too_short"):
        return f"must not be empty ({meaning})" if meaning else "must not be empty"
    if kind == "value_error":
        return str(limits["error"])
    return f"{detail['msg']}, not {plain(value)}"


BOUNDS = {
    "greater_than": "greater than",
    "greater_than_equal": "at least",
    "less_than": "less than",
    "less_than_equal": "at most",
}
BOUND_KEYS = {"greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le"}
_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "tuple_type": "a list",
    "list_type": "a list",
    "frozen_set_type": "a list",
}


def _hint(kind: str, value: object) -> str:
    """Explain the commonest slip: quotes make text of a number."""
    if kind not in ("int_type", "float_type") or not isinstance(value, str):
        return ""
    try:
        number = float(value)
    except ValueError:
        return ""
    if not math.isfinite(number):
        return ""
    return f", which is text; write {int(number) if number.is_integer() else number} without quotes"


def plain(value: object) -> str:
    """Return a value as the YAML would show it, cut where it is long."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def keys_of(model: type[BaseModel] | None) -> list[str]:
    """Return the keys a user may write for a model (what the loader fills in itself is left out)."""
    if model is None:
        return []
    fields = model.model_fields.items()
    return [field.alias or name for name, field in fields if field.json_schema_extra != {"filled": True}]


def _meaning(model: type[BaseModel], location: Sequence[str | int]) -> str:
    """Return what the description of the key at a location says."""
    holder = _model_at(model, location[:-1]) if location else None
    if holder is None:
        return ""
    for name, field in holder.model_fields.items():
        if location[-1] in (name, field.alias):
            return field.description or ""
    return ""


def _model_at(model: type[BaseModel], location: Sequence[str | int]) -> type[BaseModel] | None:
    """Return the model that stands at a location, found through the annotations of the fields on the way."""
    here: type[BaseModel] | None = model
    annotation: Any = None
    for part in location:
        if isinstance(part, int):
            continue  # the element of a list: its model was found with the list
        if part.startswith(TAG):  # a member of the union that the field before it may hold
            here = _model_in(_tagged(annotation, part)) or here
            continue
        field = here.model_fields.get(part) if here else None
        annotation = field.annotation if field else None
        here = _model_in(annotation)
    return here


def _tagged(annotation: Any, tag: str) -> Any:
    """Return the member of a union that bears the tag, or None."""
    for member in get_args(annotation):
        if any(getattr(part, "tag", None) == tag for part in get_args(member)[1:]):
            return member
    return None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside an annotation such as ``tuple[Stage, ...]`` or ``Layout | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = _model_in(inner)
        if found is not None:
            return found
    return None
