"""A night without Airflow: its cases in turn, in this process; the jobs themselves outlive it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tasks.config.nightly import load_nightly
from tasks.nightly.conclude import conclude
from tasks.nightly.night import look, plan_night, tonight


def run_night(
    say: Callable[[str], None], *, night: str | None = None, release: bool = False, only: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Run what is left of a night (by default this one), and conclude it; return what it came to."""
    night = night or tonight()
    pause = load_nightly(check=False).poll_seconds
    names = plan_night(night, release=release, only=only)
    say(f"night {night}: {', '.join(names) or 'no case is due'}")
    for name in names:
        said = ""
        while True:
            seen = look(night, name)
            if seen.line != said:
                say(said := seen.line)
            if seen.done:
                break
            time.sleep(pause)
    return conclude(night)
