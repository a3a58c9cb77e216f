"""A matrix of nightly cases multiplied out: one case is one stage of an experiment, with a name for good."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from tasks.config.nightly import Cadence, CaseBlock, Nightly, Quarantine

if TYPE_CHECKING:
    from tasks.plan import Ladder, StagePlan


@dataclass(frozen=True)
class Case:
    """One point of a matrix. Its name is that of its series and MLflow experiment: a new name begins a new past."""

    name: str
    experiment: str
    cluster: str | None
    stage: str | None
    changes: Mapping[str, Any]
    seed: int | None
    cadence: Cadence
    owner: str
    weight: float
    quarantine: Quarantine | None

    def ladder(self) -> Ladder:
        """Return the one-stage ladder that the case trains; raise ConfigInvalid where that cannot be."""
        from tasks import config, plan

        loaded = config.load_experiment(self.experiment, changes=self.changes)
        stage = self.stage or loaded.stages[0].name
        clusters = config.clusters_of(loaded, self.cluster)
        return plan.resolve(
            loaded, cluster=self.cluster, clusters=clusters, first=stage, last=stage, seed=self.seed
        )  # fmt: skip

    def plan(self) -> StagePlan:
        """Return what is decided of its one stage."""
        return self.ladder().stages[0]

    def quarantined(self, today: date) -> bool:
        """Whether its alarms count for nothing today."""
        return self.quarantine is not None and today <= self.quarantine.until


def cases(block: CaseBlock, owner: str) -> Iterator[Case]:
    """Yield the cases of one matrix, in the order of the file."""
    changes: list[tuple[str | None, Mapping[str, Any]]] = list(block.changes.items()) or [(None, {})]
    axes = (block.experiments, block.clusters or (None,), block.stages or (None,), changes, block.seeds or (None,))
    for experiment, cluster, stage, (change, keys), seed in itertools.product(*axes):
        parts = [experiment, cluster, stage, change, None if seed is None else f"seed_{seed}"]
        name = "-".join(part for part in parts if part)
        yield Case(
            name, experiment, cluster, stage, keys, seed, block.cadence, block.owner or owner, block.weight,
            block.quarantine,
        )  # fmt: skip


def all_cases(loaded: Nightly) -> list[Case]:
    """Return every case of the file."""
    return [case for block in loaded.cases for case in cases(block, loaded.owner)]


@dataclass(frozen=True)
class Price:
    """What one run of a case is expected to take; ``gpu_hours`` is 0 where its GPUs are emulated."""

    hours: float
    gpu_hours: float


@dataclass(frozen=True)
class Chosen:
    """The cases of a night in the order in which they run, and those that wait, each with a sentence."""

    run: tuple[str, ...]
    left_out: Mapping[str, str]


def choose(
    loaded: Nightly,
    due: list[Case],
    prices: Mapping[str, Price],
    nights_since: Mapping[str, int],
) -> Chosen:
    """Return which due cases fit the night's budget: the most telling for their price first.

    Telling is a case's weight times the nights since it was last measured, so what was left out comes first next time.
    """

    def worth(case: Case) -> float:
        price = prices[case.name]
        share = max(price.hours / loaded.budget.hours, price.gpu_hours / loaded.budget.gpu_hours)
        return case.weight * max(1, nights_since.get(case.name, 1)) / share if share else math.inf

    run: list[str] = []
    left_out: dict[str, str] = {}
    hours = gpu_hours = 0.0
    for case in sorted(due, key=worth, reverse=True):
        price = prices[case.name]
        if hours + price.hours > loaded.budget.hours or gpu_hours + price.gpu_hours > loaded.budget.gpu_hours:
            left_out[case.name] = (
                f"it needs {price.hours:.2g} h and {price.gpu_hours:.3g} GPU-hours; of the night's "
                f"{loaded.budget.hours:g} h and {loaded.budget.gpu_hours:g} GPU-hours "
                f"{loaded.budget.hours - hours:.2g} and {loaded.budget.gpu_hours - gpu_hours:.3g} are left"
            )
            continue
        run.append(case.name)
        hours, gpu_hours = hours + price.hours, gpu_hours + price.gpu_hours
    return Chosen(tuple(run), left_out)


def due(loaded: Nightly, night: date, *, release: bool = False) -> list[Case]:
    """Return the cases of a night: nightly ones always, weekly ones on Mondays, and all before a release."""
    kinds = {"nightly"} | ({"weekly"} if night.weekday() == 0 else set())
    return [case for case in all_cases(loaded) if release or case.cadence in kinds]
