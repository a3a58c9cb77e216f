"""The end of a night: incidents opened, added to and closed, the ratchet, the page, and whether the night is red.

Made again after a kill it changes nothing: incidents and baselines remember the night that moved them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

from tasks.config.nightly import load_nightly
from tasks.config.nightly_cases import all_cases
from tasks.errors import ScaleupError
from tasks.nightly import baseline, changed, incidents, points
from tasks.nightly.judge import SERIES
from tasks.nightly.night import NightDir, nights
from tasks.stage_dir import read_json, write_json


def conclude(night: str) -> dict[str, Any]:
    """Conclude a night and return what it came to: ``red``, a ``sentence``, ``news``, ``notices``; write its page."""
    from tasks.nightly.page import write_page

    folder = NightDir(night)
    with folder.locked("night"):
        plan = read_json(folder.plan)
        if plan is None:
            raise ScaleupError(f"night {night} is not planned; begin it with: scaleup nightly run --night {night}")
        results = folder.results()
        news = [line for result in results.values() for line in _settle(result, night)]
        idle = {name: results.get(name, {}).get("why", "its task ended before it was judged") for name in plan["cases"]
                if results.get(name, {}).get("state") != "judged"}  # fmt: skip
        loud = [found for found in incidents.all_open() if _counts(found, results)]
        record = {
            "night": night, "time": time.time(), "cases": list(plan["cases"]), "left_out": plan["left_out"],
            "not_run": idle, "news": news, "open": [incidents.name(found) for found in loud],
            "notices": list(_notices(night, results)), "red": bool(loud or idle),
            "sentence": _sentence(plan, loud, idle),
        }  # fmt: skip
        write_json(folder.conclusion, record)
        write_page(night)
        _tell(night, results)
        return record


def _tell(night: str, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Tell of incidents; a file of channels that is wrong fails no night."""
    from tasks.nightly.tell import tell

    try:
        tell(night, frozenset(case for case, result in results.items() if result["quarantined"]))
    except ScaleupError as error:
        print(f"telling: nobody was told of night {night}: {error}")


def _settle(result: Mapping[str, Any], night: str) -> Iterator[str]:
    """Carry what was judged of a case into its incidents and baselines; yield a line for what is new."""
    case = str(result["case"])
    for one in result["judgements"]:
        series, state = str(one["series"]), str(one["state"])
        said = f"{case}/{series}: {one['says']}"
        if state == "alarm":
            facts = {key: one[key] for key in ("before", "after", "p_value", "first_bad", "last_good", "says")}
            facts |= {"owner": result["owner"], "value": one["value"], "nature": one["nature"]}
            if series in SERIES:
                facts["changed"] = changed.between(points.past(case)[0], one["last_good"], one["first_bad"])
            if incidents.opened(case, series, night, facts):
                yield said
        elif state == "open":
            incidents.repeated(case, series, night)
        elif state == "recovered":
            incidents.close(case, series, how=f"recovered in night {night}", good_from=_good_from(case, series, night))
            yield said
        elif state == "improved":
            if one["for_good"]:
                baseline.ratchet(case, series, one["first_bad"], one["before"], one["after"])
                yield f"{said}; it held for ten nights and is the baseline from {one['first_bad']} on"
            elif _state_before(case, series, night) != "improved":
                yield said


def _state_before(case: str, series: str, night: str) -> str:
    """Return what the night before said of a series; nothing where there was none."""
    earlier = [date for date in nights() if date < night and NightDir(date).case(case).exists()]
    found = read_json(NightDir(earlier[-1]).case(case)) if earlier else None
    return next((str(one["state"]) for one in (found or {}).get("judgements", []) if one["series"] == series), "")


def _good_from(case: str, series: str, night: str) -> str:
    """Return the first of the nights in a row that showed an incident to be over: the third last, tonight counted."""
    from tasks.nightly.judge import RECOVERED_NIGHTS

    if series == incidents.RUNS:
        return night
    dates = sorted({point.night for point in points.here(case) if series in point.values and point.night <= night})
    return dates[-RECOVERED_NIGHTS:][0] if dates else night


def _counts(found: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether an open incident makes this night red: of a case that ran, neither acknowledged nor in quarantine."""
    result = results.get(str(found["case"]))
    return result is not None and not result["quarantined"] and not found.get("acked")


def _notices(night: str, results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield what a person must know beside the verdicts: expired quarantines, a history that could not be read."""
    for case in all_cases(load_nightly(check=False)):
        kept = case.quarantine
        if kept is not None and date.fromisoformat(night) > kept.until:
            yield (
                f"the quarantine of {case.name} expired on {kept.until}: {kept.owner} was to mend {kept.reason!r}. Its "
                "alarms count again; take the quarantine out of configs/nightly.yaml or give it a new day"
            )
    yield from dict.fromkeys(str(result["history"]) for result in results.values() if result.get("history"))


def _sentence(plan: Mapping[str, Any], loud: list[dict[str, Any]], idle: Mapping[str, str]) -> str:
    parts = [f"{incidents.name(found)} {found['says']}" for found in loud]
    parts += [f"{name} did not run: {why}" for name, why in idle.items()]
    count = len(plan["cases"])
    quiet = f"{count} case{'s' if count != 1 else ''} ran, and no open alarm counts against them"
    return "; ".join(parts) or quiet
