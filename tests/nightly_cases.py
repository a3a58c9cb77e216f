"""A plan of nights over the foreign trainer, and a past for its cases, for tests of the nightly runs."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tasks.config.nightly import load_nightly
from tasks.config.nightly_cases import Case, all_cases
from tasks.nightly import measured, points
from tasks.nightly.points import Point

TONIGHT = "2026-12-03"
BLOCK = {"experiments": ["tiny"], "cadence": "nightly"}


def plan_file(root: Path, *blocks: dict[str, Any], **keys: Any) -> Path:
    """Write ``nightly.yaml`` with these matrices, by default one case of ``tiny``."""
    said = {"cron": "0 0 1 1 *", "time_zone": "UTC", "owner": "we", "budget": {"hours": 2, "gpu_hours": 100}}
    said |= {"poll_seconds": 0.1, **keys, "cases": list(blocks) or [BLOCK]}
    path = root / "nightly.yaml"
    path.write_text(yaml.safe_dump(said))
    return path


def the_case(name: str = "tiny") -> Case:
    """Return a case of the file."""
    return next(case for case in all_cases(load_nightly()) if case.name == name)


def night_of(index: int, tonight: str = TONIGHT) -> str:
    """Return the date of a night some nights before tonight."""
    return (date.fromisoformat(tonight) - timedelta(days=index)).isoformat()


def point(night: str, attempt: int = 0, case: str = "tiny", **values: float) -> Point:
    """Return a measurement of a case, of the class that a run here has."""
    decided = the_case(case).plan()
    return Point(
        case=case, night=night, attempt=attempt, hardware=measured.hardware(decided),
        environment=measured.environment(decided), values=values, natures=dict.fromkeys(values, "modelled"),
        tokens=decided.tokens_last, run=f"tiny/of_{night}_{attempt}", commit="c" * 40, seconds=1.0, time=1.0,
    )  # fmt: skip


def past_of(
    nights: int, level: float, sd: float = 0.01, case: str = "tiny", series: str = "tokens_per_gpu_second"
) -> None:
    """Write measurements of the nights before tonight, around one level."""
    rng = np.random.default_rng(5)
    for index in range(nights, 0, -1):
        points.write(point(night_of(index), case=case, **{series: float(level * (1 + sd * rng.normal()))}))
