"""``configs/nightly.yaml``: what runs every night, how a change of level is told from noise, and who answers for it.

Importing this and loading with ``check=False`` needs neither pandas nor an experiment's file: the DAG parses with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field, StrictStr, ValidationError, field_validator

from tasks.config import files
from tasks.config.errors import Problem, from_pydantic, invalid, shown
from tasks.config.values import Count, CountOrZero, Positive, Strict, Text
from tasks.errors import ConfigInvalid

Cadence = Literal["nightly", "weekly", "release"]
_CRON = re.compile(r"[0-9A-Za-z*,/\-#]+( [0-9A-Za-z*,/\-#]+){4}")
_CHANGE = re.compile(r"[a-z0-9_]+")


def _zone(said: str) -> str:
    try:
        ZoneInfo(said)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"{said!r} is no time zone; write one such as UTC or Europe/Berlin") from error
    return said


def _cron(said: str) -> str:
    if not _CRON.fullmatch(said):
        raise ValueError(f"{said!r} must be five fields (minute hour day month weekday), for example '30 1 * * *'")
    return said


def _day(said: Any) -> Any:
    if isinstance(said, date) and not isinstance(said, datetime):
        return said
    try:
        return date.fromisoformat(str(said))  # in quotes it is text
    except ValueError as error:
        raise ValueError(f"{said!r} is no day; write it as 2027-01-31") from error


class Quarantine(Strict):
    """A case whose alarms count for nothing until a day; after it they do again, and the report says it expired."""

    owner: Text = Field(description="who mends it")
    reason: Text = Field(description="why its alarms do not count")
    until: Annotated[date, BeforeValidator(_day)] = Field(description="the last day, for example 2027-01-31")


class Budget(Strict):
    """What a night may take; cases that do not fit wait, the cheapest and most telling go first."""

    hours: Positive = Field(description="hours of a night")
    gpu_hours: Positive = Field(description="GPU-hours of a night, emulated ones not counted")


class SeriesRule(Strict):
    """What counts as a change of one series."""

    least_change: Annotated[float, Field(strict=True, gt=0, lt=1)] = 0.02


class Rule(Strict):
    """N1 of GATES 7.2: when a series of nights has changed its level."""

    p_value: Annotated[float, Field(strict=True, gt=0, le=0.05)] = 1e-3
    p_value_without_rerun: Annotated[float, Field(strict=True, gt=0, le=0.05)] = 1e-4
    window: Annotated[int, Field(strict=True, ge=20)] = 50
    least_nights: Annotated[int, Field(strict=True, ge=10)] = 10
    reruns: Literal[0, 2] = 2
    series: dict[
        Literal[
            "tokens_per_gpu_second", "memory_gib", "held_out_loss", "startup_seconds", "checkpoint_stall_seconds",
            "recovery_seconds",
        ],
        SeriesRule,
    ] = Field(default_factory=dict)  # fmt: skip


class CaseBlock(Strict):
    """A matrix of cases: each experiment on each cluster, at each stage, with each change of keys and each seed."""

    experiments: tuple[Text, ...] = Field(description="names of files in configs/experiments", min_length=1)
    clusters: tuple[Text, ...] = Field(default=(), description="default: each experiment's own")
    stages: tuple[Text, ...] = Field(default=(), description="stages that can start by themselves; default: the first")
    changes: dict[StrictStr, dict[str, Any]] = Field(
        default_factory=dict, description="a name, and the keys that it lays over the experiment"
    )
    seeds: tuple[CountOrZero, ...] = Field(default=(), description="default: the experiment's own")
    cadence: Cadence = Field(description="nightly, weekly (Mondays), or release (when asked for)")
    owner: StrictStr = ""
    weight: Positive = Field(default=1.0, description="how telling: among cases of one price the greater goes first")
    quarantine: Quarantine | None = None

    @field_validator("changes")
    @classmethod
    def _names(cls, said: Mapping[str, Any]) -> Mapping[str, Any]:
        wrong = [name for name in said if not _CHANGE.fullmatch(name)]
        if wrong:
            raise ValueError(f"a change's name may hold a-z, 0-9 and _ only, not {wrong[0]!r}")
        return said


class Nightly(Strict):
    """The whole file."""

    cron: Annotated[Text, AfterValidator(_cron)] = Field(description="when, for example '30 1 * * *'")
    time_zone: Annotated[Text, AfterValidator(_zone)] = Field(description="of the cron line and of a night's date")
    owner: Text = Field(description="who is told where a case names nobody")
    budget: Budget = Field(description="hours and gpu_hours of a night")
    poll_seconds: Positive = 30.0
    at_once: Count = 1
    rule: Rule = Rule()
    cases: tuple[CaseBlock, ...] = Field(description="a list of matrices of cases", min_length=1)


def path() -> Path:
    """Return where the file lies; it need not exist, and then there are no nightly runs."""
    return files.config_root() / "nightly.yaml"


def load_nightly(*, check: bool = True) -> Nightly:
    """Return the file's content; ``check`` also loads every case's experiment with its changes, which brings pandas.

    Raises ConfigInvalid with all that is wrong at once.
    """
    if not path().is_file():
        raise ConfigInvalid(f"{shown(path())} does not exist; nightly runs are what this file says")
    raw = files.parse(path(), "plan of nightly runs")
    try:
        loaded = Nightly.model_validate(raw)
    except ValidationError as error:
        raise invalid(path(), "plan of nightly runs", from_pydantic(error.errors(), Nightly)) from error
    problems = list(_case_problems(loaded)) if check else []
    if problems:
        raise invalid(path(), "plan of nightly runs", problems)
    return loaded


def _case_problems(loaded: Nightly) -> Iterator[Problem]:
    """Yield what is wrong in each matrix: names without a file, stages that cannot start, changes that do not fit."""
    from tasks.config.nightly_cases import cases

    seen: dict[str, int] = {}
    for index, block in enumerate(loaded.cases):
        for case in cases(block, loaded.owner):
            if case.name in seen:
                said = f"case {case.name} is in cases.{seen[case.name]} already; name each once"
                yield Problem(f"cases.{index}", said)
                return
            seen[case.name] = index
            try:
                case.plan()
            except ConfigInvalid as error:
                yield Problem(f"cases.{index}", f"{case.name}: {' '.join(str(error).split())}")
