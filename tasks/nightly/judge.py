"""Has the level of a series of nights moved? Numbers in, a suspicion out; what two reruns make of it (GATES 7.2, N1).

Knows no files: :mod:`tasks.nightly.verdict` brings the nights, and the benchmark simulates them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tasks.statistics.change_points import FEWEST_NIGHTS, ChangeRule, level_changes, p_of_equal_levels

BAND_NIGHTS = 20  # of the golden level, and of the present one held against it; ten know too little of correlation
ESTIMATE_NIGHTS = 2  # by which the place of an accepted break may move as nights are added
RECOVERED_NIGHTS = 3  # two nights by chance on the good side: 13% in a month at a fall of 3 sd; three: 1%


@dataclass(frozen=True)
class Series:
    """One quantity that a night measures: unit, which way is better, and what relative change counts."""

    name: str
    unit: str
    higher_is_better: bool
    least_change: float = 0.02
    least_difference: float = 0.0  # in its unit: a tenth of eight milliseconds is nobody's concern


SERIES = {
    series.name: series
    for series in (
        Series("tokens_per_gpu_second", "tokens/s/GPU", higher_is_better=True),
        Series("memory_gib", "GiB", higher_is_better=False),
        # G4 of GATES allows .01 nats, which is half a per cent of a loss near 2.
        Series("held_out_loss", "nats", higher_is_better=False, least_change=0.005),
        Series("startup_seconds", "s", higher_is_better=False, least_change=0.1, least_difference=1.0),
        Series("checkpoint_stall_seconds", "s", higher_is_better=False, least_change=0.1, least_difference=0.05),
        Series("recovery_seconds", "s", higher_is_better=False, least_change=0.1, least_difference=1.0),
    )
}
"""All series, in the order of the report. Seconds of a start hang on caches and neighbours, so they count from 10%."""


@dataclass(frozen=True)
class Suspicion:
    """A level that seems to have moved: ``first`` is the index of its first night, the levels are means.

    ``change``: a change point. ``drift``: no single night, but the last twenty nights lie off the golden twenty.
    """

    first: int
    before: float
    after: float
    p_value: float
    kind: Literal["change", "drift"]

    def counts(self, series: Series) -> bool:
        """Whether the levels lie so far apart that somebody should know."""
        return abs(self.change) >= series.least_change and abs(self.after - self.before) >= series.least_difference

    @property
    def change(self) -> float:
        """Relative change, negative for a fall."""
        return (self.after - self.before) / abs(self.before) if self.before else float(np.sign(self.after)) * np.inf


def suspicion(
    values: Sequence[float],
    series: Series,
    *,
    p_value: float = 1e-3,
    window: int = 50,
    known: int = 0,
    imported: int = 0,
) -> Suspicion | None:
    """Return what the newest level of ``values`` (good nights in order, tonight last) is suspected of, or None.

    ``known`` is the index from which the present baseline counts, and ``imported`` how many nights are a past that
    nobody judged: breaks at the one and within the other are no news. ``before`` is the mean of the baseline, not of
    the nights since the last break: a chance rise of some nights, and the return from it, made most false alarms. Fewer
    than 10 nights say nothing.
    """
    y = np.asarray(values, dtype=float)
    if y.size < FEWEST_NIGHTS:
        return None
    seen = y[-window:]
    left = y.size - seen.size
    found = level_changes(seen, ChangeRule(p_value=p_value, least_change=series.least_change, window=window))
    news_from = max(imported, known + ESTIMATE_NIGHTS if known else 0)
    begin = max([known, *(point.index + left for point in found if point.index + left < news_from)])
    if found and (first := found[-1].index + left) >= news_from:
        last = found[-1]
        new = Suspicion(first, float(y[begin:first].mean()), last.after, last.p_value, "change")
        if new.counts(series) and (new.after < new.before) == (last.after < last.before):
            return new
    return _drift(y, series, p_value, begin)


def _drift(y: np.ndarray, series: Series, p_value: float, known: int) -> Suspicion | None:
    """Hold the last nights against the baseline's first ones: many small steps that no single night shows.

    At a tenth of p, since it is asked every night on top of the change points.
    """
    golden, present = y[known : known + BAND_NIGHTS], y[-BAND_NIGHTS:]
    if y.size - known < 2 * BAND_NIGHTS:
        return None
    found = Suspicion(y.size - BAND_NIGHTS, float(golden.mean()), float(present.mean()), 1.0, "drift")
    if not found.counts(series):
        return None
    p = p_of_equal_levels(golden, present, correlated=True)
    return Suspicion(found.first, found.before, found.after, p, "drift") if p <= p_value / 10 else None


def worse(found: Suspicion, series: Series) -> bool:
    """Whether the new level is the worse one."""
    return (found.after < found.before) == series.higher_is_better


def holds_for_good(found: Suspicion, nights: int, p_value: float) -> bool:
    """Whether an improvement moves the baseline (the ratchet): ten nights old by now, and ten times as sure.

    A chance rise that moved it at once would turn the return to normal into an alarm, and did.
    """
    return nights - found.first >= FEWEST_NIGHTS and found.p_value <= p_value / 10


def agrees(value: float, before: float, after: float) -> bool:
    """Whether one measurement lies nearer to the new level than to the old."""
    return abs(value - after) < abs(value - before)


def confirmed(found: Suspicion, attempts: Sequence[float]) -> bool:
    """Whether two of three measurements of one night agree with a suspicion; a rerun without a value does not."""
    return sum(agrees(value, found.before, found.after) for value in attempts) >= 2


def recovered(newest: Sequence[float], before: float, after: float) -> bool:
    """Whether the newest three nights all lie nearer to the good level, so that an incident is over."""
    last = newest[-RECOVERED_NIGHTS:]
    return len(last) == RECOVERED_NIGHTS and not any(agrees(value, before, after) for value in last)


def night_value(attempts: Sequence[float]) -> float:
    """Return what a night counts as: the median of its measurements, so that one bad run spoils no baseline."""
    return float(np.median(np.asarray(attempts, dtype=float)))
