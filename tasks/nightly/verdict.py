"""What a night says of each series of a case: judged on good nights of the same class, tonight's last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, Literal

from tasks.config.nightly import Rule
from tasks.nightly import baseline, incidents
from tasks.nightly.judge import (
    SERIES,
    Series,
    Suspicion,
    agrees,
    confirmed,
    holds_for_good,
    night_value,
    recovered,
    suspicion,
    worse,
)
from tasks.nightly.points import Point, comparable
from tasks.statistics.change_points import FEWEST_NIGHTS

State = Literal["learning", "steady", "suspect", "unconfirmed", "alarm", "improved", "open", "recovered", "missing"]


@dataclass(frozen=True)
class Judgement:
    """One series on one night: its state, the value and the level it is held against, and a sentence."""

    series: str
    state: State
    says: str
    value: float | None = None
    nature: str = ""
    before: float | None = None
    after: float | None = None
    p_value: float | None = None
    first_bad: str = ""  # first night of the new level
    last_good: str = ""
    attempts: tuple[float, ...] = ()
    for_good: bool = False  # of an improvement: whether it moves the baseline

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary."""
        return asdict(self)


@dataclass(frozen=True)
class Nights:
    """The good nights of one series in order, tonight last: dates, and medians of each night's measurements."""

    dates: tuple[str, ...]
    values: tuple[float, ...]
    known: int  # index from which the present baseline counts
    imported: int  # how many of them are an imported past
    bad: tuple[float, ...]  # of the open incident's nights, tonight last


def judge(past: Sequence[Point], tonight: Sequence[Point], rule: Rule) -> list[Judgement]:
    """Judge every series of a case by its points before tonight and its one or three of tonight.

    A suspicion on one measurement is ``suspect``; on three it is an alarm, an improvement, or unconfirmed. Where
    ``rule`` pays for no rerun the answer falls at once, at the stricter p.
    """
    return [judge_runs(tonight), *(judge_series(past, tonight, series, rule) for series in SERIES.values())]


def judge_runs(tonight: Sequence[Point]) -> Judgement:
    """Judge whether the case runs at all: one failure is tried again, two of three are an alarm."""
    case, night = tonight[0].case, tonight[0].night
    failed = [point.failed for point in tonight if point.failed]
    known = incidents.open_of(case, incidents.RUNS)
    facts: dict[str, Any] = {"series": incidents.RUNS, "first_bad": night}
    if known is not None:
        if failed and len(failed) == len(tonight):
            return Judgement(state="open", says=f"it does not run since {known['first_bad']}: {failed[0]}", **facts)
        return Judgement(state="recovered", says=f"it runs again; it did not since {known['first_bad']}", **facts)
    if not failed:
        return Judgement(incidents.RUNS, "steady", "it ran")
    if len(tonight) == 1:
        return Judgement(state="suspect", says=f"it failed: {failed[0]}", **facts)
    if len(failed) >= 2:
        return Judgement(state="alarm", says=f"{len(failed)} of {len(tonight)} runs failed: {failed[0]}", **facts)
    return Judgement(state="unconfirmed", says=f"one of {len(tonight)} runs failed: {failed[0]}", **facts)


def judge_series(past: Sequence[Point], tonight: Sequence[Point], series: Series, rule: Rule) -> Judgement:
    """Judge one series."""
    asked = rule.series.get(series.name)  # type: ignore[call-overload]
    series = replace(series, least_change=asked.least_change) if asked else series
    measured = [point for point in tonight if series.name in point.values]
    if not measured:
        return Judgement(series.name, "missing", "not measured tonight")
    like, attempts = measured[0], tuple(point.values[series.name] for point in measured)
    nights = nights_of(past, like, series.name, night_value(attempts))
    known = incidents.open_of(like.case, series.name)
    found = _followed(known, nights, series) if known else _new(nights, series, rule, attempts)
    level = known["before"] if known else found.before
    return replace(
        found, value=night_value(attempts), nature=like.natures.get(series.name, ""), before=level, attempts=attempts
    )


def nights_of(past: Sequence[Point], like: Point, series: str, tonight: float) -> Nights:
    """Return the good nights before tonight, one value each, and tonight's."""
    spans, since = incidents.bad_nights(like.case, series), baseline.from_night(like.case, series)
    dates, values, bad, imported = [], [], [], 0
    found = [point for point in comparable(past, like, series) if point.night < like.night]
    for date, of_night in groupby(found, key=lambda point: point.night):
        several = list(of_night)
        value = night_value([point.values[series] for point in several])
        if incidents.is_bad(date, spans):
            bad += [value] if spans[-1][1] == "" and date >= spans[-1][0] else []
            continue
        dates.append(date)
        values.append(value)
        imported = len(dates) if all(point.imported for point in several) else imported
    known = sum(1 for date in dates if since and date < since)
    return Nights((*dates, like.night), (*values, tonight), known, imported, (*bad, tonight))


def _new(nights: Nights, series: Series, rule: Rule, attempts: tuple[float, ...]) -> Judgement:
    """Judge a series without an open incident."""
    count = len(nights.values)
    if count < max(rule.least_nights, FEWEST_NIGHTS):
        return Judgement(series.name, "learning", f"night {count} of the {rule.least_nights} that a judgement needs")
    alone = rule.reruns == 0
    # What made three measurements of tonight was its first; it is asked again as it was then.
    values = (*nights.values[:-1], attempts[0])
    p = rule.p_value_without_rerun if alone else rule.p_value
    found = _asked(values, nights, series, rule, p)
    newest = nights.values[nights.known : -1][-FEWEST_NIGHTS:]
    level = sum(newest) / len(newest) if newest else None
    if found is None:
        return Judgement(series.name, "steady", "no change of level", before=level)
    state: State = "alarm" if worse(found, series) else "improved"
    if state == "improved":  # nobody is woken by it, so no rerun is paid; where there are some they are heard
        state = "improved" if len(attempts) == 1 or confirmed(found, attempts) else "unconfirmed"
    elif not alone and len(attempts) == 1:
        state = "suspect"
    elif not alone and not (confirmed(found, attempts) and _holds(nights, series, rule)):
        state = "unconfirmed"
    return Judgement(
        series.name, state, _sentence(found, nights, series, state, attempts), before=found.before, after=found.after,
        p_value=found.p_value, first_bad=nights.dates[found.first], last_good=nights.dates[found.first - 1],
        for_good=state == "improved" and holds_for_good(found, count, p),
    )  # fmt: skip


def _holds(nights: Nights, series: Series, rule: Rule) -> bool:
    """Whether the suspicion stays with the median of tonight's measurements in place of the first."""
    return _asked(nights.values, nights, series, rule, rule.p_value) is not None


def _asked(values: Sequence[float], nights: Nights, series: Series, rule: Rule, p_value: float) -> Suspicion | None:
    return suspicion(
        values, series, p_value=p_value, window=rule.window, known=nights.known, imported=nights.imported
    )  # fmt: skip


def _sentence(found: Suspicion, nights: Nights, series: Series, state: State, attempts: tuple[float, ...]) -> str:
    moved = f"{found.before:.5g} to {found.after:.5g} {series.unit} ({found.change:+.1%})"
    began = f"since {nights.dates[found.first]}" if found.kind == "change" else "little by little, over twenty nights"
    sure = f"p {found.p_value:.1g}" if found.p_value > 1e-16 else "p below 1e-16"
    if state == "suspect":
        return f"seems to have moved from {moved} {began}, {sure}; two reruns decide"
    if len(attempts) > 1:
        count = sum(agrees(value, found.before, found.after) for value in attempts)
        sure += f", {count} of {len(attempts)} runs tonight agree"
    if state == "unconfirmed":
        return f"seemed to have moved from {moved}, {sure}: not believed"
    return f"moved from {moved} {began}, {sure}"


def _followed(known: dict[str, Any], nights: Nights, series: Series) -> Judgement:
    """Judge a series whose incident is open: does tonight repeat it, and have three nights in a row left it?"""
    before, after = float(known["before"]), float(known["after"])
    facts: dict[str, Any] = {"after": after, "first_bad": known["first_bad"], "last_good": known["last_good"]}
    if recovered(nights.bad, before, after):
        return Judgement(series.name, "recovered", "three nights in a row are back at the level before", **facts)
    back = 0
    for value in reversed(nights.bad):
        if agrees(value, before, after):
            break
        back += 1
    said = f"; {back} of 3 nights are back" if back else ""
    change = f"{(after - before) / abs(before):+.1%} " if before else ""
    return Judgement(series.name, "open", f"{change}since {known['first_bad']}{said}", **facts)
