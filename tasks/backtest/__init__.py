"""Test the throughput predictor on a table of past runs: fit on small scales, foretell the largest, compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasks.backtest.score import METHODS, OURS, Fitted, Foretold, Score, foretell, methods_of, score
from tasks.backtest.seen import seen
from tasks.backtest.table import Series, Table, read_table
from tasks.errors import TableInvalid
from tasks.statistics import PUBLISHED, ScalingPrior
from tasks.statistics.scaling_fit import ScalingSeries, learn, learn_without

__all__ = [
    "METHODS", "OURS", "Backtest", "Foretold", "Score", "Series", "Table", "TableInvalid", "backtest", "learn_from",
    "read_table",
]  # fmt: skip

Prior = Literal["auto", "shipped", "left-out"]
FAMILIES_NEEDED = 5  # a prior learned from fewer than four others is no test of the method; a judgement
FAR = 8.0  # gaps from which on they are told apart
FITS: tuple[Fitted, ...] = ("two_smallest", "all_but_largest")


@dataclass(frozen=True)
class Backtest:
    """What was foretold of each series, by kind of scaling and by what was fitted; and whose prior foretold it."""

    table: Table
    prior: Literal["shipped", "left-out"]
    taught: int  # series of the file from which the shipped prior was learned
    families: int
    found: dict[str, dict[str, list[Foretold]]]

    def as_json(self) -> dict[str, Any]:
        """Return all of it as JSON: errors are foretold / observed - 1."""
        return {
            "file": str(self.table.path),
            "prior": self.prior,
            "taught_the_shipped_prior": self.taught,
            "families": self.families,
            "left_out": self.table.left_out,
            **{kind: {fit: _group(found) for fit, found in fits.items()} for kind, fits in self.found.items()},
        }


def backtest(
    table: Table, prior: Prior = "auto", told: Callable[[str, float], None] = lambda what, part: None
) -> Backtest:
    """Foretell the largest scale of every series; ``told`` hears what is being done and the part of it done.

    The shipped prior foretells what it was not learned from. ``auto`` takes it unless series of the file have taught
    it; then each family is foretold by a prior learned from the file's other families, its settings chosen by them.
    """
    weak = [one for one in table.series if one.kind == "weak"]
    families = sorted({one.family for one in weak})
    taught = sum(seen(one) for one in weak)
    if prior == "left-out" and len(families) < FAMILIES_NEEDED:
        raise TableInvalid(
            f"{table.path} has {len(families)} families of weak series; to leave one out and learn from the others "
            f"takes {FAMILIES_NEEDED}, so test the shipped prior instead"
        )
    leave = prior == "left-out" or (prior == "auto" and taught > 0 and len(families) >= FAMILIES_NEEDED)
    priors: Mapping[str, ScalingPrior] = dict.fromkeys(families, PUBLISHED)
    if leave:
        what = f"learning {len(families)} priors, each without one family"
        priors = learn_without(_for_learning(weak), told=lambda part: told(what, part))
    found: dict[str, dict[str, list[Foretold]]] = {}
    for kind in ("weak", "strong"):
        mine = [one for one in table.series if one.kind == kind]
        found[kind] = {}
        for fit in FITS:
            what = f"foretelling {len(mine)} {kind} series"
            found[kind][fit] = foretell(mine, priors, fit, told=lambda n, w=what, m=mine: told(w, n / len(m)))  # type: ignore[misc]
    return Backtest(table, "left-out" if leave else "shipped", taught, len(families), found)


def learn_from(table: Table) -> ScalingPrior:
    """Return the prior that all weak series of a table teach together."""
    weak = [one for one in table.series if one.kind == "weak"]
    if len({one.family for one in weak}) < FAMILIES_NEEDED:
        raise TableInvalid(
            f"{table.path} has too few families of weak series to learn from; {FAMILIES_NEEDED} are the least"
        )
    return learn(_for_learning(weak))


def _for_learning(weak: Sequence[Series]) -> list[ScalingSeries]:
    return [ScalingSeries(one.name, one.family, one.gpus, one.throughput) for one in weak]


def _group(found: list[Foretold]) -> dict[str, Any]:
    far = [one for one in found if one.gap >= FAR]
    refused = [one for one in found if one.refused]
    made = [one for one in found if not one.refused]
    return {
        "series": len(found),
        "refused": len(refused),
        "all_gaps": {method: _score(score(found, method)) for method in methods_of(found)},
        "gaps_of_8_and_more": {method: _score(score(far, method)) for method in methods_of(far)},
        "refusals": [{"series": one.series, "fitted": one.fitted, "why": one.refused} for one in refused],
        "forecasts": [_forecast(one) for one in sorted(made, key=lambda one: -abs(one.off()))],
    }


def _score(found: Score | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "n": found.n,
        "median_error": found.median,
        "p90_error": found.p90,
        "coverage_of_lower_95": found.coverage,
        "interval_90": found.interval,
    }


def _forecast(one: Foretold) -> dict[str, Any]:
    return {
        "series": one.series,
        "family": one.family,
        "fitted": one.fitted,
        "target": one.target,
        "observed": one.observed,
        "foretold": one.observed * (1 + one.off()),
        "lower_95": one.observed * (1 + one.off()) * math.exp(-one.below[OURS]),
        "covered": one.covered(OURS),
        "error": {method: one.off(method) for method in one.error},
    }
