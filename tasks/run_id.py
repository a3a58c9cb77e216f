"""Run ids: names that folders, jobs and URLs can bear."""

from __future__ import annotations

import re

_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")


def safe(said: str) -> str:
    """Return the run id for a name given elsewhere, for instance by Airflow: ``manual__2026-01-02T03_04_05_00_00``."""
    return _UNFIT.sub("_", said)
