"""A promoted checkpoint in the store: put there with its copy in the second region, and fetched by the next stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tasks.errors import CheckpointUnsound
from tasks.signing import check_seal
from tasks.stage_dir import StageDir, read_json
from training import manifest
from training.config import StoreOrders
from training.store import (
    Series,
    StoreError,
    StoreSettings,
    Unreachable,
    fetch,
    keep,
    open_replica,
    open_series,
    problems,
    put,
    replicate,
)
from training.store.pointer import pointer_key


def series_name(stage: StageDir) -> str:
    """Return the name under which a stage's checkpoints are kept."""
    return f"{stage.run.experiment}/{stage.run.run_id}/{stage.name}"


def orders(stage: StageDir, settings: StoreSettings) -> StoreOrders:
    """Return what the trainer needs to keep its checkpoints in the store, and to find them there again."""
    marks = [read_json(path) or {} for path in stage.set_aside_marks]
    aside = tuple((int(mark["after"]), float(mark["time"])) for mark in marks)
    return StoreOrders(series_name(stage), settings.to_json(), aside)


def store(stage: StageDir, settings: StoreSettings, found: manifest.Manifest) -> tuple[dict[str, Any], list[Series]]:
    """Keep a checkpoint in the store and in the second region, each read back whole; return what to record, and where.

    One place that does not answer is recorded and does not stand in the way as long as the other has it. Raises
    CheckpointUnsound.
    """
    here = open_series(settings, series_name(stage))
    there = open_replica(settings, series_name(stage))
    kept: list[Series] = []
    lacking: dict[str, str] = {}

    def attempt(series: Series, work: Callable[[], object]) -> None:
        try:
            work()
            _read_back(series, found)
            kept.append(series)
        except Unreachable as error:
            lacking[series.address] = str(error)

    try:
        attempt(here, lambda: put(here, found.folder, replace=True))
        if there is not None and settings.replicated_by == "us":
            if kept:
                attempt(there, lambda: replicate.copy(here, there, found.step))
            else:
                attempt(there, lambda: put(there, found.folder, replace=True))
        elif there is not None:
            replicate.check_bucket_rules(here, there)
    except StoreError as error:
        raise CheckpointUnsound(f"{stage.name} cannot be promoted: {error}") from error
    if not kept:
        raise CheckpointUnsound(f"{stage.name} cannot be promoted, no store answers: {'; '.join(lacking.values())}")
    place = kept[0]
    return {
        "path": f"{place.objects.address}/{pointer_key(place.name, found.step)}",
        "series": place.name,
        "stored_manifest": place.pointer(found.step).stored_manifest,
        "kept_in": [series.address for series in kept],
        "not_kept_in": lacking,
    }, kept


def pin(stage: StageDir, kept: list[Series], record: Mapping[str, Any]) -> None:
    """Protect a promoted checkpoint from pruning wherever it is kept; raise CheckpointUnsound where it is gone."""
    step = record["checkpoint"]["step"]
    try:
        for series in kept:
            keep.pin(series, series.pointer(step), record)
    except StoreError as error:
        raise CheckpointUnsound(f"{stage.name} cannot be promoted: {error}") from error


def fetched(before: StageDir, promotion: Mapping[str, Any], settings: StoreSettings, into: Path) -> Path:
    """Return the folder with the checkpoint that ``before`` was promoted for, out of the nearest place that has it.

    What is fetched already is summed again and taken. Raises CheckpointUnsound where nothing answers, or where what
    answers is not the very checkpoint that was promoted.
    """
    promoted = promotion["checkpoint"]
    check_seal(promotion, settings.key_file, before.promotion)
    if "stored_manifest" not in promoted:
        raise CheckpointUnsound(
            f"{before.promotion} was written by an older version, which kept whole folders in its store; remove the "
            f"file and promote {before.name} again"
        )
    wanted, final = promoted["manifest_sha256"], into / manifest.folder_name(promoted["step"])
    if final.exists() and not manifest.verify(final) and manifest.read(final).digest == wanted:
        return final
    places = [open_series(settings, promoted["series"]), open_replica(settings, promoted["series"])]
    failed = []
    for place in places:
        if place is None:
            continue
        try:
            folder = fetch(place, promoted["step"], into)
        except StoreError as error:
            failed.append(str(error))
            continue
        if manifest.read(folder).digest == wanted:
            return folder
        failed.append(f"{place.address} has another checkpoint of step {promoted['step']} than the one promoted")
    raise CheckpointUnsound("; ".join(failed))


def _read_back(series: Series, found: manifest.Manifest) -> None:
    """Read every byte of what is stored as a restore would; raise StoreError where it is not the checkpoint."""
    if damage := problems(series, found.step):
        raise damage[0]
    if series.pointer(found.step).manifest != found.digest:
        raise StoreError(f"{series.address} holds another checkpoint of step {found.step} than {found.folder}")
