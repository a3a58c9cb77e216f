"""Which checkpoints of a stage may be gone on from, and putting the others out of the trainer's sight, undeleted."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.stage_dir import StageDir, read_json, write_json
from training import manifest

_PIN = ".pinned"  # what protects a checkpoint lies beside it


@dataclass(frozen=True)
class Kept:
    """One checkpoint that lies in the stage's folder."""

    step: int
    path: Path


def kept(stage: StageDir, rows: Mapping[str, int]) -> list[Kept]:
    """Return the stage's checkpoints, oldest step first.

    A step is what the manifest says; of a foreign format what the trainer's ``checkpoint`` row says (``rows``: step by
    path), else the last number in the name, as in ``global_step500`` or ``iter_0000500``. A name without a number is
    no checkpoint (many trainers keep a file that names the newest).
    """
    if not stage.checkpoints.is_dir():
        return []
    found = []
    for path in stage.checkpoints.iterdir():
        if path.name.startswith(".") or path.name.endswith(_PIN):
            continue
        step = _step(path, rows.get(str(path.relative_to(stage.path)), rows.get(str(path))))
        if step is not None:
            found.append(Kept(step, path))
    return sorted(found, key=lambda one: (one.step, one.path.name))


def newest(stage: StageDir, rows: Mapping[str, int], at_most: int | None = None) -> Kept | None:
    """Return the newest checkpoint of a step of at most ``at_most``; None where the stage's start is all there is."""
    good = [one for one in kept(stage, rows) if at_most is None or one.step <= at_most]
    return good[-1] if good else None


def set_aside(stage: StageDir, rows: Mapping[str, int], after: int, attempt: int) -> list[Path]:
    """Move every checkpoint of a step beyond ``after`` into the attempt's own folder; return where they lie now.

    What the store has of them cannot be moved; a mark beside them tells the trainer not to go on from it.
    """
    mark = stage.set_aside_mark(attempt)
    known = read_json(mark) or {}
    write_json(mark, {"after": min(after, known.get("after", after)), "time": time.time()})
    moved = []
    for one in kept(stage, rows):
        if one.step <= after:
            continue
        folder = stage.set_aside(attempt)
        folder.mkdir(parents=True, exist_ok=True)
        for path in (one.path, one.path.with_name(one.path.name + _PIN)):
            if path.exists():
                os.replace(path, folder / path.name)
        moved.append(folder / one.path.name)
    return moved


def _step(path: Path, recorded: int | None) -> int | None:
    if (path / manifest.MANIFEST).is_file():
        try:
            return manifest.read(path).step
        except manifest.ManifestError:
            return None  # damaged: nobody goes on from it
    if recorded is not None:
        return recorded
    numbers = re.findall(r"\d+", path.stem)
    return int(numbers[-1]) if numbers else None
