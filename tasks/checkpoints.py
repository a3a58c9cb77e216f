"""The checkpoints of a run in every place that has them: the stage's folder, the store, the second region."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import ScaleupError
from tasks.promoted import series_name
from tasks.run import plan_of
from tasks.stage_dir import StageDir
from training import manifest
from training.manifest import FileSum, Manifest, ManifestError
from training.store import Damaged, Series, StoreError, fetch, keep, open_replica, open_series, problems

FOLDER = "folder"


@dataclass(frozen=True)
class Listed:
    """One checkpoint in one place, or why it cannot be read there."""

    stage: str
    step: int
    place: str  # folder, store or replica
    address: str
    facts: Manifest | None
    pinned: bool = False
    damage: str | None = None


def places(stage: StageDir) -> dict[str, Series]:
    """Return the stage's series in the store and in the second region, by the words of the cluster file."""
    settings = plan_of(stage).cluster.store.settings()
    try:
        found = {
            "store": open_series(settings, series_name(stage)),
            "replica": open_replica(settings, series_name(stage)),
        }
    except StoreError as error:
        raise ScaleupError(str(error)) from error
    return {name: series for name, series in found.items() if series is not None}


def listed(stage: StageDir) -> Iterator[Listed]:
    """Yield every checkpoint of a stage, place by place, oldest first; raise ScaleupError where one does not answer."""
    for folder in sorted(stage.checkpoints.glob("step_*[0-9]")):
        step = int(folder.name.removeprefix("step_"))
        try:
            facts = manifest.read(folder)
        except ManifestError as error:
            yield Listed(stage.name, step, FOLDER, str(folder), None, damage=str(error))
        else:
            yield Listed(stage.name, step, FOLDER, str(folder), facts, manifest.pinned(folder) is not None)
    for place, series in places(stage).items():
        try:
            pins = keep.pinned_steps(series)
            for step in series.steps():
                yield _stored(stage.name, place, series, step, step in pins)
            for step, reasons in keep.quarantined(series).items():
                where = f"{series.address}/quarantine"
                yield Listed(stage.name, step, place, where, None, damage=f"put aside: {'; '.join(reasons)}")
        except StoreError as error:
            raise ScaleupError(str(error)) from error


def _stored(stage: str, place: str, series: Series, step: int, pinned: bool) -> Listed:
    try:
        facts = series.stored_manifest(series.pointer(step)).facts
    except Damaged as error:
        return Listed(stage, step, place, series.address, None, pinned, str(error))
    return Listed(stage, step, place, series.address, facts, pinned)


def verify(stage: StageDir, one: Listed) -> list[str]:
    """Read every byte of a checkpoint where it is; return what is wrong."""
    if one.facts is None:
        return [one.damage or "cannot be read"]
    if one.place == FOLDER:
        return manifest.verify(one.facts.folder)
    try:
        return [str(damage) for damage in problems(places(stage)[one.place], one.step)]
    except StoreError as error:
        return [str(error)]


def chosen(stage: StageDir, step: int | None) -> Listed:
    """Return a step's checkpoint from the nearest place that can read it, the newest where no step is said."""
    readable = [one for one in listed(stage) if one.facts is not None]
    if step is None:
        step = max((one.step for one in readable), default=None)
    for one in readable:
        if one.step == step:
            return one
    there = ", ".join(map(str, sorted({one.step for one in readable}))) or "none"
    raise ScaleupError(f"{stage.name} has no readable checkpoint of step {step}; there are {there}")


@contextmanager
def at_hand(stage: StageDir, one: Listed) -> Iterator[Path]:
    """Hold a checkpoint's folder: its own, or one fetched out of a store for as long as the block lasts."""
    if one.place == FOLDER:
        yield Path(one.address)
        return
    with tempfile.TemporaryDirectory(prefix="scaleup_checkpoint.") as folder:
        try:
            yield fetch(places(stage)[one.place], one.step, Path(folder))
        except StoreError as error:
            raise ScaleupError(str(error)) from error


def differences(one: Manifest, other: Manifest) -> list[str]:
    """Return a line for each fact and file in which two checkpoints differ."""
    lines = []
    for name in ("step", "tokens", "purpose", "world", "layout", "commit", "config_digest"):
        before, after = getattr(one, name), getattr(other, name)
        if before != after:
            lines.append(f"{name}: {before} -> {after}")
    for name in sorted({*one.extra, *other.extra}):
        if one.extra.get(name) != other.extra.get(name):
            lines.append(f"{name}: {one.extra.get(name)} -> {other.extra.get(name)}")
    for name in sorted({*one.files, *other.files}):
        was, now = one.files.get(name), other.files.get(name)
        if was != now:
            lines.append(f"file {name}: {_size(was)} -> {_size(now)}")
    return lines


def _size(file: FileSum | None) -> str:
    return "absent" if file is None else f"{file.bytes} bytes, SHA-256 {file.sha256[:12]}"
