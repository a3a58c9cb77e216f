"""What one run of one case measured, kept as a file and as a run of MLflow: the past that nights are judged by.

The file is written first. A server that is away delays its copy and fails nothing; what it lacks is shipped by the next
:func:`past`, which then reads all that it has, so that several homes share one history.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import ScaleupError
from tasks.stage_dir import home, read_json, write_json

if TYPE_CHECKING:
    from tasks.tracking.server import Server

TRACKED = "nightly/"  # before a case's name: its MLflow experiment
_WHOLE = "scaleup.nightly.point"  # the tag that holds all of a point but its values


@dataclass(frozen=True)
class Point:
    """One measurement of a case in one night: ``attempt`` 0, and 1 and 2 where a suspicion asked for reruns."""

    case: str
    night: str  # its date, 2026-12-03
    attempt: int
    hardware: str  # only nights of one hardware and environment class are compared
    environment: str
    values: Mapping[str, float]  # by series; what was not measured is left out
    natures: Mapping[str, str] = field(default_factory=dict)  # real, measured or modelled, by series
    tokens: int = 0  # trained until the end: held-out losses are compared at equal ones
    run: str = ""  # experiment/run id; empty where it was imported
    commit: str = ""
    packages: str = ""  # digest of the installed distributions
    fingerprint: str = ""  # of the data
    host: str = ""
    verdict: str = ""  # what the stage's own gates said
    seconds: float = 0.0  # from submitting to the end, the price of the next night
    time: float = 0.0
    failed: str = ""  # why there are no values

    @property
    def key(self) -> str:
        """What tells it from every other point."""
        return f"{self.case}/{self.night}/{self.attempt}"

    @property
    def imported(self) -> bool:
        """Whether it came from a file, and so from before the nightly runs."""
        return not self.run

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Point:
        """Read what ``asdict`` made."""
        return cls(**value)


def folder() -> Path:
    """Return the folder of all that nightly runs know."""
    return home() / "nightly"


def write(point: Point) -> None:
    """Keep a point; the same key is the same point and is written over."""
    write_json(_file(point), asdict(point))


def read(case: str, night: str, attempt: int) -> Point | None:
    """Return a point of this home, or None before it is measured."""
    found = read_json(folder() / "points" / case / f"{night}_{attempt}.json")
    return None if found is None else Point.from_json(found)


def here(case: str) -> list[Point]:
    """Return this home's points of a case, oldest night first."""
    files = sorted((folder() / "points" / case).glob("*.json"))
    return _ordered([Point.from_json(value) for path in files if (value := read_json(path)) is not None])


def past(case: str) -> tuple[list[Point], str]:
    """Return all points of a case that MLflow and this home have, and why MLflow's are missing where they are."""
    own, uri = here(case), os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        return own, "MLFLOW_TRACKING_URI is not set, so only this home's nights are known"
    from tasks.tracking import server_at

    try:
        server = server_at(uri)
        experiment = server.experiment(f"{TRACKED}{case}")
        there = {point.key: point for point in map(_of_mlflow, server.runs(experiment, _WHOLE))}
        for point in own:
            if point.key not in there:
                _ship(server, experiment, point)
    except ScaleupError:
        raise
    except Exception as error:  # tracking may delay, but must not fail a night: the reason is handed on instead
        first = str(error).strip().splitlines()[:1]
        return own, f"MLflow at {uri} does not answer ({''.join(first)[:200]}), so only this home's nights are known"
    return _ordered({**there, **{point.key: point for point in own}}.values()), ""


def cases() -> list[str]:
    """Return the names of all cases that this home has points of."""
    return sorted(path.name for path in (folder() / "points").glob("*") if path.is_dir())


def comparable(points: Sequence[Point], like: Point, series: str) -> list[Point]:
    """Return the points that measured a series in the class of another; losses at the same tokens only."""
    return [
        point
        for point in points
        if series in point.values
        and (point.hardware, point.environment) == (like.hardware, like.environment)
        and (series != "held_out_loss" or point.tokens == like.tokens)
    ]


def _file(point: Point) -> Path:
    return folder() / "points" / point.case / f"{point.night}_{point.attempt}.json"


def _ordered(points: Any) -> list[Point]:
    return sorted(points, key=lambda point: (point.night, point.attempt))


def _ship(server: Server, experiment: str, point: Point) -> None:
    """Make the point's MLflow run, or find the one that an interrupted call made."""
    from tasks.tracking.curves import Point as Metric

    name = f"{point.night} run {point.attempt + 1}"
    key = {"scaleup.nightly": point.key}
    run = server.find_run(experiment, key) or server.create_run(experiment, name, key, int(1000 * point.time))
    plain = asdict(point)
    tags = {_WHOLE: json.dumps({k: v for k, v in plain.items() if k != "values"})}
    tags |= {f"scaleup.{k}": str(plain[k]) for k in ("night", "hardware", "environment", "commit", "run") if plain[k]}
    when = int(1000 * point.time)
    points = [Metric(series, value, when, 0) for series, value in point.values.items()]
    server.store(run, points=points)
    server.store(run, tags=tags)  # last, since a run without its whole tag is read by nobody and shipped again
    server.set_status(run, "FAILED" if point.failed else "FINISHED", int(1000 * point.time))


def _of_mlflow(found: tuple[str, Mapping[str, str], Mapping[str, float]]) -> Point:
    _, tags, metrics = found
    plain = json.loads(tags[_WHOLE])
    return replace(Point.from_json({**plain, "values": {}}), values=dict(metrics))
