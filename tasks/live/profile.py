"""Where the time of slower steps went: the phases of a step before an alarm's window and in it, as recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.live.alarms import Alarm
from tasks.records import read_metrics

if TYPE_CHECKING:
    import pandas as pd

PHASES = ("data", "forward", "backward", "communication", "optimizer")
BEFORE_STEPS = 400  # before the window, at most: what is older says little of now
LEAST = 0.1  # of what a step grew by; a phase that took less is not named


def profiled(alarm: Alarm, metrics: Path) -> Alarm:
    """Return a throughput alarm that also says which phases of a step grew, and by how much; any other as it is.

    Only steps up to the alarm's are looked at, so that it says the same whenever it is asked.
    """
    if alarm.rule != "throughput" or alarm.window is None:
        return alarm
    steps = read_metrics(metrics).steps
    own = steps[steps["phase"] != "replay"]
    first, last = alarm.window
    now = own[own["step"].between(first, last)]
    before = own[own["step"].between(first - BEFORE_STEPS, first - 1)]
    if len(now):  # another batch is another step
        before = before[before["batch"].isna() | (before["batch"] == now["batch"].iloc[-1])]
    return replace(alarm, says=f"{alarm.says}; {_where(before, now)}")


def _where(before: pd.DataFrame, now: pd.DataFrame) -> str:
    names = [f"{phase}_seconds" for phase in PHASES]
    if not len(before) or not len(now):
        return "there are no steps before it to compare with"
    if now[names].isna().to_numpy().all() or before[names].isna().to_numpy().all():
        return "its records have no phases (data, forward, backward, communication, optimizer) to compare"
    grown = float(now["step_seconds"].mean() - before["step_seconds"].mean())
    told = []
    for phase, name in zip(PHASES, names, strict=True):
        was, is_ = float(before[name].mean()), float(now[name].mean())
        if grown > 0 and is_ - was >= LEAST * grown:
            told.append(((is_ - was) / grown, f"{phase} ({was:.4g} to {is_:.4g} s, {(is_ - was) / grown:.0%} of it)"))
    if not told:
        return "no phase of a step grew with it: look outside the phases that are recorded"
    return "what grew: " + ", ".join(text for _, text in sorted(told, reverse=True))
