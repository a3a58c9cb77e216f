"""What differs between a series' last good night and its first bad one: code, packages, recipe, machines, data."""

from __future__ import annotations

import difflib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks import plan
from tasks.nightly import points
from tasks.nightly.points import Point
from tasks.stage_dir import RunDir, read_json

_MOST = 20  # lines of one kind; more are counted
_FREE = ("description:", "owner:")


def between(past: Sequence[Point], good: str, bad: str) -> dict[str, list[str]]:
    """Return the differences between two nights by kind; an empty list where one was looked at and is the same.

    What cannot be compared any more is said in a line.
    """
    before, after = _of(past, good), _of(past, bad)
    if before is None or after is None:
        missing = good if before is None else bad
        return {"unknown": [f"no run of {missing or 'the night before'} is known"]}
    return {
        "commits": _commits(before, after),
        "packages": _packages(before.packages, after.packages),
        "recipe": _recipe(before, after),
        "machines": _facts(before, after, "host", "hardware", "environment"),
        "data": _facts(before, after, "fingerprint"),
    }


def _of(past: Sequence[Point], night: str) -> Point | None:
    return next((point for point in past if point.night == night and not point.failed), None)


def _commits(before: Point, after: Point) -> list[str]:
    """Return the commits from one night's code to the other's, newest first."""
    if not before.commit or not after.commit:
        return ["a commit is unknown: one of the nights ran from no git work tree, or was imported"]
    touched = after.commit.endswith("+changes")
    found = [f"the files differ from commit {after.commit[:12]} (+changes)"] if touched else []
    ends = [point.commit.removesuffix("+changes") for point in (before, after)]
    if ends[0] == ends[1]:
        return found if before.commit != after.commit or not found else [f"{found[0]}, as they did before"]
    root = Path(__file__).resolve().parents[2]
    command = ["git", "-C", str(root), "log", "--oneline", "--no-decorate", f"{ends[0]}..{ends[1]}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return [*found, f"{ends[0][:12]}..{ends[1][:12]} (git does not answer)"]
    if done.returncode != 0 or not done.stdout:
        return [*found, f"{ends[0][:12]}..{ends[1][:12]} (not in this work tree)"]
    return [*found, *_cut(done.stdout.splitlines())]


def _packages(before: str, after: str) -> list[str]:
    """Return lines as a diff of two lists of packages."""
    if before == after:
        return []
    if not before or not after:
        return ["the packages of an imported night are unknown"]
    files = [points.folder() / "packages" / f"{digest}.txt" for digest in (before, after)]
    if not all(path.exists() for path in files):
        return [f"they differ ({before[:8]} -> {after[:8]}); a list is of another home"]
    older, newer = (path.read_text().splitlines() for path in files)
    lines = difflib.unified_diff(older, newer, lineterm="", n=0)
    return _cut([line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")])


def _recipe(before: Point, after: Point) -> list[str]:
    """Return each value of the recipe, its cluster's file included, that differs."""
    frozen: list[dict[str, Any]] = []
    for point in (before, after):
        found = read_json(RunDir.of(*point.run.split("/")).recipe) if point.run else None
        if found is None:
            return [f"the recipe of {point.night} is not in this home"]
        frozen.append({key: found[key] for key in ("experiment", "clusters")})
    return _cut([line for line in plan.difference(*frozen) if not line.startswith(_FREE)])


def _facts(before: Point, after: Point, *names: str) -> list[str]:
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in names]
    return [f"{name}: {one} -> {other}" for name, one, other in pairs if one != other and one and other]


def _cut(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _MOST else [*lines[:_MOST], f"and {len(lines) - _MOST} more"]
