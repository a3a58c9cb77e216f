"""From plain JSON to typed orders: one reader for every dataclass of the contract."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from training.config.errors import ConfigError


def build(kind: type, value: Any, where: str = "config.json") -> Any:
    """Return ``value``, plain JSON, as the dataclass ``kind``; raise ConfigError naming the key that does not fit."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {value!r} is no object")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    required = [n for n, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING]
    if unknown := sorted(set(value) - set(fields)):
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; there are {', '.join(fields)}")
    if missing := [name for name in required if name not in value]:
        raise ConfigError(f"{where}: {missing[0]} is missing")
    hints = get_type_hints(kind)
    return kind(**{name: _typed(hints[name], each, f"{where}: {name}") for name, each in value.items()})


def _typed(hint: Any, value: Any, where: str) -> Any:
    """Return ``value`` as its field's type says: nested dataclasses, tuples in place of lists, the rest as it is."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _typed(_member(inner, value), value, where)
    if origin is Literal and value not in inner:
        raise ConfigError(f"{where}: {value!r} is none of {', '.join(map(str, inner))}")
    if dataclasses.is_dataclass(hint):
        return build(hint, value, where)  # type: ignore[arg-type]
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where}: {value!r} is no list")
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        if len(kinds) != len(value):
            raise ConfigError(f"{where}: {value!r} has {len(value)} entries, not {len(kinds)}")
        return tuple(_typed(k, v, f"{where}.{i}") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    if hint in (int, float, str, bool) and not _fits(hint, value):
        raise ConfigError(f"{where}: {value!r} is no {hint.__name__}")
    return value


def _member(kinds: tuple[Any, ...], value: Any) -> Any:
    """Return the one of several types that a value may be of: a mapping is a dataclass, else the first that is none."""
    some = [kind for kind in kinds if kind is not type(None)]
    wanted = [kind for kind in some if dataclasses.is_dataclass(kind) == isinstance(value, Mapping)]
    return (wanted or some)[0]


def _fits(hint: type, value: Any) -> bool:
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
