"""Gates on goodput: the time paid for is spent on steps that count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tasks import statistics
from tasks.gates import frames
from tasks.gates.core import Check, Evidence, Outcome, Unusable, gate
from tasks.gates.thresholds import Part

if TYPE_CHECKING:
    import pandas as pd

MORE_THAN_PASSED = 1.02  # productive over wall time; a clock's rounding explains no more


@gate(when="end", needs=("step_seconds", "time"))
def goodput(evidence: Evidence, *, at_least: Part = 0.90) -> Check:
    """The stage's wall time went into steps that count, planned evaluations and checkpoints aside."""
    facts = evidence.stage
    frame = frames.steps(evidence, facts.name, ("replay", "canary", "train"))
    what = f"steps of {facts.name}"
    frames.refuse_gaps(evidence, np.unique(frame["step"].to_numpy(dtype=int)))
    if len(frame) < statistics.SMALLEST_WINDOW:
        raise Unusable(f"{len(frame)} {what} are too few; {statistics.SMALLEST_WINDOW} are the least")
    clock = "wall_seconds" if facts.emulated and "wall_seconds" in frame else "step_seconds"
    seconds, ended = frames.numbers(frame, clock, what), frames.numbers(frame, "time", what)
    between = np.diff(ended)
    if (seconds <= 0).any() or (between <= 0).any():
        raise Unusable(f"{clock} or time does not go forward from step to step: the records are not those of one clock")
    planned = _planned(evidence, frame, between - seconds[1:])
    wall, spent = float(between.sum()), float(seconds[1:].sum())
    share = spent / (wall - planned)
    if share > MORE_THAN_PASSED and not facts.emulated:
        raise Unusable(f"{spent:.3g} s of steps in {wall - planned:.3g} s of wall time: {clock} is in another unit")
    limit = 0.0 if facts.emulated else at_least
    good = share >= limit
    said = f"{share:.1%} of {wall - planned:,.0f} s went into steps that count, {planned:,.0f} s of planned work aside"
    tail = "; a rehearsal, so reported and not gated" if facts.emulated else f"; at least {at_least:.0%} is asked"
    return Check(
        "goodput",
        Outcome.PASS if good else Outcome.FAIL,
        said + tail,
        estimate=share,
        limit=limit,
        unit="of wall time",
        n=len(frame),
        window=frames.window(frame, "replay, canary and train"),
        method=f"sum of {clock} of steps that count over the time from the first to the last (GATES 5)",
        next_step="" if good else "see what lies between the steps: restarts, lost steps, data loading, a slow store",
    )


def _planned(evidence: Evidence, frame: pd.DataFrame, gaps: statistics.Array) -> float:
    """Return seconds between steps that were meant: all of a gap with an evaluation, a checkpoint's own seconds.

    Never more than the gap, and nothing but the checkpoint's where a new attempt began in it: that is a restart.
    """
    step = frame["step"].to_numpy(dtype=int)[:-1]
    attempt = frame["attempt"].to_numpy() if "attempt" in frame.columns else np.ones(len(frame))
    went_on = attempt[1:] == attempt[:-1]
    evaluated = np.isin(step, _steps_of(evidence.held_out)) & went_on
    free = np.maximum(gaps, 0.0)
    written = np.zeros(step.size)
    for at, seconds in _checkpoints(evidence.checkpoints):
        written[step == at] += seconds
    return float(np.where(evaluated, free, np.minimum(written, free)).sum())


def _steps_of(rows: pd.DataFrame) -> statistics.Array:
    if "step" not in rows.columns:
        return np.empty(0)
    import pandas as pd

    return np.asarray(pd.to_numeric(rows["step"], errors="coerce").to_numpy(dtype=float))


def _checkpoints(rows: pd.DataFrame | None) -> Iterator[tuple[float, float]]:
    """Yield step and seconds of each checkpoint that says how long it took."""
    if rows is None or not {"step", "seconds"} <= set(rows.columns):
        return
    import pandas as pd

    numbers = rows[["step", "seconds"]].apply(pd.to_numeric, errors="coerce").to_numpy(dtype=float)
    yield from ((step, seconds) for step, seconds in numbers if np.isfinite(seconds) and seconds > 0)
