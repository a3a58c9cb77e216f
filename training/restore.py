"""Before a job begins: its folder gets the newest whole checkpoint, out of the store or its copy if need be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from training.config import CHECKPOINTS, METRICS, TrainConfig
from training.store import Damaged, StoreSettings, newest_whole, open_replica, open_series


@dataclass(frozen=True)
class Restored:
    """What was looked for, and what is lost."""

    verified: Path | None = None  # the newest whole checkpoint: summed just now
    place: str | None = None  # where it came from
    lost_steps: int = 0  # between the newest checkpoint that any place names and this one
    passed_over: tuple[str, ...] = ()  # newer ones, and why; those that were damaged are put aside


NOTHING = Restored()


def restore(stage_dir: Path, config: TrainConfig) -> Restored:
    """Let the stage's folder have the newest whole checkpoint of the stage there is: its own, the store's, its copy's.

    A stage that has recorded nothing has no checkpoint anywhere, and nothing is asked. Raises Unreachable where no
    whole one is at hand and a place does not answer: to begin anew then could throw days away.
    """
    orders, metrics = config.store, stage_dir / METRICS
    if orders is None or not metrics.exists() or not metrics.stat().st_size:
        return NOTHING
    settings = StoreSettings.from_json(orders.settings)
    places = [open_series(settings, orders.series), open_replica(settings, orders.series)]
    try:
        found = newest_whole(
            stage_dir / CHECKPOINTS, [place for place in places if place is not None], not_from=orders.is_set_aside
        )
    except Damaged as error:
        return Restored(passed_over=(str(error),))
    if found is None:
        return NOTHING
    passed = tuple(f"step {one.step} in {one.place}: {one.reason}" for one in found.passed_over)
    return Restored(found.checkpoint.folder, found.place, found.lost_steps, passed)
