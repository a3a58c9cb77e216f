"""Otava's own tests of change points, read from its source distribution: series, settings, breaks asserted."""

from __future__ import annotations

import ast
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILES = ("tigerbeetle_test.py", "analysis_test.py")


@dataclass(frozen=True)
class OwnTest:
    """One of Otava's tests that calls `compute_change_points` and asserts the indexes."""

    name: str
    series: list[float]
    window: int
    p_value: float
    least_change: float
    breaks: list[int]


def own_tests(archive: Path) -> list[OwnTest]:
    """Read them without importing anything; those of another function (permutations, the t test alone) are left out."""
    found: list[OwnTest] = []
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            if Path(member.name).name in FILES and Path(member.name).parent.name == "tests":
                source = packed.extractfile(member)
                found += _of_file(ast.parse(source.read() if source else ""))
    return found


def _of_file(module: ast.Module) -> Iterator[OwnTest]:
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    shared = [_numbers(node) for node in functions if node.name == "_get_series"]
    for function in functions:
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        asked = [call for call in calls if getattr(call.func, "id", "") == "compute_change_points"]
        if not asked:
            continue
        settings = {key.arg: ast.literal_eval(key.value) for key in asked[0].keywords}
        asserted = next(node.test for node in function.body if isinstance(node, ast.Assert))
        yield OwnTest(
            function.name,
            shared[0] if shared else _numbers(function),
            settings["window_len"],
            settings["max_pvalue"],
            settings.get("min_magnitude", 0.0),
            ast.literal_eval(asserted.comparators[0]),
        )


def _numbers(function: ast.FunctionDef) -> list[float]:
    """Return the first list of numbers in a function."""
    return next(ast.literal_eval(node) for node in ast.walk(function) if isinstance(node, ast.List) and node.elts)
