"""Configuration files as plain mappings: where they lie, YAML without double keys, ``extends``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tasks.config.errors import Problem, invalid, unknown


def config_root() -> Path:
    """Return the folder of all configuration (``SCALEUP_CONFIGS``, else ``configs`` beside the code)."""
    return Path(os.environ.get("SCALEUP_CONFIGS", Path(__file__).resolve().parents[2] / "configs")).absolute()


def names(folder: str) -> list[str]:
    """Return the stems of all YAML files in ``experiments`` or ``clusters``, sorted; contents are not read."""
    return sorted(path.stem for path in (config_root() / folder).glob("*.yaml"))


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``over`` laid on it: mappings merge key by key, anything else (lists too) is replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = deep_merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def read(path: Path, kind: str) -> tuple[dict[str, Any], str | None]:
    """Return a file's mapping with what it ``extends`` merged beneath, and the name that it extends.

    Raises ConfigInvalid where a file of the chain is missing, is no YAML, writes a key twice, or extends itself.
    """
    return _read(path, kind, seen=(path.stem,))


def _read(path: Path, kind: str, seen: tuple[str, ...]) -> tuple[dict[str, Any], str | None]:
    own = parse(path, kind)
    base = own.pop("extends", None)
    if base is None:
        return own, None
    there = sorted(p.stem for p in path.parent.glob("*.yaml") if p != path)
    if not isinstance(base, str) or base not in {*there, *seen}:
        raise invalid(path, kind, [Problem("extends", unknown(kind, base, there))])
    if base in seen:
        chain = " -> ".join([*seen, base])
        raise invalid(path, kind, [Problem("extends", f"goes in a circle: {chain}; let one of them stand alone")])
    below, _ = _read(path.parent / f"{base}.yaml", kind, (*seen, base))
    return deep_merge(below, own), base


def parse(path: Path, kind: str) -> dict[str, Any]:
    """Return the mapping in a YAML file; raise ConfigInvalid with the line where it is none."""
    try:
        value = yaml.load(path.read_text(), Loader=_UniqueKeys)  # noqa: S506  # a SafeLoader with one more check
    except UnicodeDecodeError as error:
        raise invalid(path, kind, [Problem("file", f"is not UTF-8 text (byte {error.start})")]) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}" if mark else "file"
        raise invalid(path, kind, [Problem(where, str(error.problem))]) from error
    except yaml.YAMLError as error:
        raise invalid(path, kind, [Problem("file", f"is not YAML: {error}")]) from error
    if not isinstance(value, dict):
        got = "nothing" if value is None else f"a {type(value).__name__}"
        raise invalid(path, kind, [Problem("file", f"must hold a mapping of keys to values, not {got}")])
    return value


class _UniqueKeys(yaml.SafeLoader):
    """YAML's safe loader, except that a key written twice is an error (YAML lets the last one win, silently)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} is not text; write it in quotes if it is meant so",
                    problem_mark=key_node.start_mark,
                )
            if key in lines:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} is written twice, first in line {lines[key]}; keep one",
                    problem_mark=key_node.start_mark,
                )
            lines[key] = line
        return super().construct_mapping(node, deep)


# YAML 1.1 takes 1e-3 and 4.0e14 for text, YAML 1.2 for the numbers that everybody means.
_UniqueKeys.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
