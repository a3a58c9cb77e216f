"""What each verb of ``scaleup nightly`` does; :mod:`tasks.cli.night_options` parses."""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from tasks.errors import ScaleupError


def nightly(options: Namespace) -> int:
    """Do one of the verbs of the nightly runs."""
    verbs = {
        "run": run, "status": status, "report": report, "accept": accept, "import": import_, "export": export,
    }  # fmt: skip
    return verbs[options.verb](options)


def run(options: Namespace) -> int:
    """Run what is due tonight, or what is left of a night; 1 where the night is red."""
    from tasks.nightly.climb import run_night
    from tasks.nightly.night import NightDir

    def say(line: str) -> None:
        print(line, flush=True)

    found = run_night(say, night=options.night, release=options.release, only=tuple(options.case))
    say(("RED: " if found["red"] else "GREEN: ") + found["sentence"])
    say(str(NightDir(found["night"]).report))
    return 1 if found["red"] else 0


def status(options: Namespace) -> int:
    """Show the newest night, or a named one."""
    from rich.console import Console

    from tasks.terminal.nightly_view import show

    Console(width=None if sys.stdout.isatty() else 160).print(show(_night(options.night)))
    return 0


def report(options: Namespace) -> int:
    """Write the page of a concluded night again."""
    from tasks.nightly.night import NightDir
    from tasks.nightly.page import write_page

    night = _night(options.night)
    if not NightDir(night).conclusion.exists():
        raise ScaleupError(f"night {night} is not concluded; go on with it: scaleup nightly run --night {night}")
    print(write_page(night))
    return 0


def accept(options: Namespace) -> int:
    """Take an incident's level for the baseline."""
    from tasks.nightly import baseline

    print(baseline.accept(options.incident, options.because, options.by))
    return 0


def import_(options: Namespace) -> int:
    """Take measurements from a table."""
    from tasks.nightly.table import import_from

    new, known = import_from(Path(options.file))
    print(f"{new} measurements imported, {known} were there")
    return 0


def export(options: Namespace) -> int:
    """Write every measurement of every case, whole or not at all."""
    from tasks.nightly import points, table

    path = Path(options.file).absolute()
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, newline="") as draft:
            count = table.export(draft, points.cases())
        os.replace(draft.name, path)
    except OSError as error:
        raise ScaleupError(f"{path} cannot be written: {error.strerror}") from error
    print(f"{count} measurements in {options.file}")
    return 0


def _night(said: str | None) -> str:
    from tasks.nightly.night import nights

    known = nights()
    if said is None and known:
        return known[-1]
    if said not in known:
        latest = f"the newest is {known[-1]}" if known else "there is none yet; begin with: scaleup nightly run"
        raise ScaleupError(f"no night {said or ''} is known here; {latest}".replace("  ", " "))
    return str(said)


def ack(options: Namespace) -> int:
    """Quiet an open incident."""
    from tasks.nightly import incidents

    print(incidents.acknowledge(options.incident, options.because, options.by))
    return 0
