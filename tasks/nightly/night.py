"""A night: which cases run, a look at each, and what is concluded. Each step may be killed and made again.

``nightly/nights/<date>/``: ``plan.json`` (cases in order, what was left out and why), ``cases/<case>.json`` (its
judgements, once it is over), ``night.json`` (the conclusion) and ``report.html``.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from tasks.config.nightly import Nightly, load_nightly
from tasks.config.nightly_cases import Case, Price, all_cases, choose, due
from tasks.errors import ScaleupError
from tasks.nightly import lease, points
from tasks.nightly.points import Point
from tasks.nightly.run_case import advance
from tasks.stage_dir import read_json, write_json


@dataclass(frozen=True)
class NightDir:
    """The folder of one night, and the only place that knows its file names."""

    night: str

    @property
    def path(self) -> Path:
        """Where it lies."""
        return points.folder() / "nights" / self.night

    @property
    def plan(self) -> Path:
        """Which cases run, in order, and which were left out."""
        return self.path / "plan.json"

    @property
    def conclusion(self) -> Path:
        """What the night came to."""
        return self.path / "night.json"

    @property
    def report(self) -> Path:
        """The page for people."""
        return self.path / "report.html"

    def case(self, name: str) -> Path:
        """What was judged of a case."""
        return self.path / "cases" / f"{name}.json"

    def results(self) -> dict[str, dict[str, Any]]:
        """Return what was judged so far, by case in the order of the plan."""
        names = (read_json(self.plan) or {}).get("cases", [])
        return {name: found for name in names if (found := read_json(self.case(name))) is not None}

    @contextmanager
    def locked(self, what: str) -> Iterator[None]:
        """Hold a lock of the night; a death lets go of it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / f".{what}.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@dataclass(frozen=True)
class CaseLook:
    """What one look at a case saw."""

    done: bool
    line: str


def tonight(now: float | None = None) -> str:
    """Return the date of this night, in the time zone of the file."""
    zone = ZoneInfo(load_nightly(check=False).time_zone)
    return datetime.fromtimestamp(time.time() if now is None else now, zone).date().isoformat()


def nights() -> list[str]:
    """Return the dates of all nights of this home, oldest first."""
    return sorted(path.parent.name for path in (points.folder() / "nights").glob("*/plan.json"))


def plan_night(night: str, *, release: bool = False, only: tuple[str, ...] = ()) -> list[str]:
    """Write down which cases run, in order, and return them; a night that is planned stays as it is."""
    known = read_json(NightDir(night).plan)
    if known is not None:
        return list(known["cases"])
    loaded = load_nightly()
    wanted = _wanted(loaded, _date(night), release, only)
    prices = {case.name: price(case) for case in wanted}
    since = {case.name: _nights_since(case, _date(night)) for case in wanted}
    chosen = choose(loaded, wanted, prices, since)
    record = {
        "night": night, "cases": list(chosen.run), "left_out": dict(chosen.left_out), "time": time.time(),
        "prices": {name: asdict(found) for name, found in prices.items()}, "budget": loaded.budget.model_dump(),
        "release": release,
    }  # fmt: skip
    write_json(NightDir(night).plan, record)
    return list(chosen.run)


def look(night: str, name: str, now: float | None = None) -> CaseLook:
    """Take a case as far as it goes without waiting; done once it is judged, or given up with a sentence."""
    folder, now = NightDir(night), time.time() if now is None else now
    with folder.locked(f"case_{name}"):
        if folder.case(name).exists():
            return CaseLook(True, f"{name} is judged")
        loaded, plan = load_nightly(check=False), read_json(folder.plan)
        if plan is None:
            raise ScaleupError(f"night {night} is not planned; begin it with: scaleup nightly run --night {night}")
        case = _named(loaded, name)
        cluster, holder = case.plan().cluster.name, f"night {night}, {name}"
        taken = lease.take(cluster, holder, loaded.budget.hours, now)
        late = now - float(plan["time"]) > 3600 * loaded.budget.hours
        if taken is not None:
            if not late:
                return CaseLook(False, f"{name} waits: {taken}")
            return _given_up(folder, case, f"{taken}, for all of the night")
        done = _measure(folder, loaded, case, plan, now)
        if done.done:
            lease.release(cluster, holder)
        return done


def _measure(folder: NightDir, loaded: Nightly, case: Case, plan: Mapping[str, Any], now: float) -> CaseLook:
    """Measure the case once, and where that is suspect twice more; write what is judged of it."""
    from tasks.nightly.verdict import judge

    first = advance(case, folder.night, 0)
    if first.point is None:
        return CaseLook(False, first.line)
    past, unheard = points.past(case.name)
    past = [point for point in past if point.night < folder.night]
    tonight = [first.point]
    suspects = [found for found in judge(past, tonight, loaded.rule) if found.state == "suspect"]
    rule = loaded.rule
    begun = points.read(case.name, folder.night, 1)
    if suspects and not _reruns_fit(loaded, case, plan, first.point, now, begun):
        rule = rule.model_copy(update={"reruns": 0})
    elif suspects:
        for attempt in (1, 2):
            again = advance(case, folder.night, attempt)
            if again.point is None:
                return CaseLook(False, f"{case.name} is suspect ({suspects[0].series}); {again.line}")
            tonight.append(again.point)
    found = judge(past, tonight, rule)
    points.past(case.name)  # what tonight measured goes to MLflow now
    write_json(folder.case(case.name), _result(case, found, tonight, folder, loaded, unheard))
    quiet = ("steady", "missing", "learning")
    states = ", ".join(f"{one.series} {one.state}" for one in found if one.state not in quiet)
    return CaseLook(True, f"{case.name}: {states or 'nothing moved'}")


def _result(
    case: Case, found: Any, tonight: list[Point], folder: NightDir, loaded: Nightly, unheard: str
) -> dict[str, Any]:
    today = _date(folder.night)
    quarantine = case.quarantine.model_dump(mode="json") if case.quarantine else None
    return {
        "case": case.name, "owner": case.owner, "night": folder.night, "time": time.time(), "state": "judged",
        "quarantined": case.quarantined(today), "quarantine": quarantine,
        "judgements": [one.to_json() for one in found], "runs": [point.run for point in tonight],
        "seconds": [point.seconds for point in tonight], "verdicts": [point.verdict for point in tonight],
        "history": unheard, "hardware": tonight[0].hardware, "environment": tonight[0].environment,
    }  # fmt: skip


def _given_up(folder: NightDir, case: Case, why: str) -> CaseLook:
    quarantine = case.quarantine.model_dump(mode="json") if case.quarantine else None
    write_json(folder.case(case.name), {
        "case": case.name, "owner": case.owner, "night": folder.night, "time": time.time(), "state": "not run",
        "why": why, "judgements": [], "quarantine": quarantine, "quarantined": case.quarantined(_date(folder.night)),
    })  # fmt: skip
    return CaseLook(True, f"{case.name} did not run: {why}")


def price(case: Case) -> Price:
    """Return what a run of a case is expected to take: as long as the last one, else the stage's limit."""
    decided, known = case.plan(), points.here(case.name)
    seconds = [point.seconds for point in known if point.seconds > 0 and not point.failed]
    hours = seconds[-1] / 3600 if seconds else decided.hours
    return Price(hours, 0.0 if decided.emulated else decided.gpus * hours)


def _reruns_fit(
    loaded: Nightly, case: Case, plan: Mapping[str, Any], first: Point, now: float, begun: Point | None
) -> bool:
    """Whether two reruns fit what is left of the night; once one is measured the second always does."""
    if loaded.rule.reruns == 0:
        return False
    if begun is not None:
        return True
    hours = first.seconds / 3600
    spent = sum(
        found.gpus * sum(result.get("seconds", [])) / 3600
        for name, result in NightDir(str(plan["night"])).results().items()
        if not (found := _named(loaded, name).plan()).emulated
    )
    decided = case.plan()
    asked = 0.0 if decided.emulated else 2 * decided.gpus * hours
    in_time = (now - float(plan["time"])) / 3600 + 2 * hours <= loaded.budget.hours
    return in_time and spent + asked <= loaded.budget.gpu_hours


def _wanted(loaded: Nightly, day: date, release: bool, only: tuple[str, ...]) -> list[Case]:
    if not only:
        return due(loaded, day, release=release)
    return [_named(loaded, name) for name in dict.fromkeys(only)]


def _named(loaded: Nightly, name: str) -> Case:
    from tasks.config.errors import unknown

    there = {case.name: case for case in all_cases(loaded)}
    if name not in there:
        raise ScaleupError(f"configs/nightly.yaml has {unknown('case', name, there)}")
    return there[name]


def _nights_since(case: Case, day: date) -> int:
    known = [point.night for point in points.here(case.name) if not point.failed]
    return max(1, (day - date.fromisoformat(known[-1])).days) if known else 30


def _date(night: str) -> date:
    try:
        return date.fromisoformat(night)
    except ValueError as error:
        raise ScaleupError(f"night {night!r} is no date; write it as 2026-12-31") from error
