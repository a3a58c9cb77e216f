"""What commands about runs do: climb, show, validate, report, reap."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from argparse import Namespace
from typing import Any

from tasks.errors import ConfigInvalid
from tasks.run import find_run, ladder_of
from tasks.stage_dir import RunDir, read_json


def run(options: Namespace) -> int:
    """Climb an experiment."""
    from tasks.climb import climb
    from tasks.terminal import teller

    chosen = {name: getattr(options, name) for name in ("cluster", "first", "last", "seed", "note")}
    with teller(sys.stdout, options.plain) as told:
        return climb(options.experiment, told, run_id=options.run_id, **chosen)


def status(options: Namespace) -> int:
    """Show how a run stands, once or until it is over."""
    from tasks.terminal import teller

    found = find_run(options.run)
    if options.json:
        print(json.dumps(_status(found), indent=1))
        return 0
    if not options.follow:
        from tasks.cli.console import console
        from tasks.terminal.ladder_view import render

        console().print(render(found))
        return 0
    with teller(sys.stdout) as told:
        while True:
            told.show(found)
            if _over(found):
                return 0
            time.sleep(1.0)


def validate(options: Namespace) -> int:
    """Check experiments, all of them before any verdict, and print their tables."""
    from tasks import config, plan

    wrong = []
    for name in options.experiments or config.experiments():
        try:
            loaded = config.load_experiment(name)
            ladder = plan.resolve(loaded, cluster=options.cluster)
        except ConfigInvalid as error:
            wrong.append(str(error))
            continue
        _print_ladder(loaded.name, loaded.description, plan.table(ladder))
    if wrong:
        raise ConfigInvalid("\n".join(wrong))
    return 0


def report(options: Namespace) -> int:
    """Write all reports of a run."""
    from tasks.report import report as write_report
    from tasks.report import report_run

    found = find_run(options.run)
    for decided in ladder_of(found).stages:
        if found.stage(decided.name).path.exists():
            write_report(found.stage(decided.name))
    report_run(found)
    print(found.report_html)
    return 0


def reap(options: Namespace) -> int:
    """List and end jobs whose run is over."""
    from tasks.reap import reap as end_orphans

    lines = end_orphans(end=not options.list)
    print("\n".join(lines) or "no job is left whose run is over")
    return 0


def _status(found: RunDir) -> dict[str, Any]:
    """Return the run as JSON: what its folder says, and of each stage's newest job what its launcher says."""
    from tasks.ladder_outcome import outcome
    from tasks.ladder_state import stages_now
    from tasks.launch import job_of, launcher_of

    info = read_json(found.info) or {}
    ladder, stages = ladder_of(found), []
    for now in stages_now(found):
        job = job_of(found.stage(now.name))
        state = launcher_of(ladder.stage(now.name)).poll(job) if job else None
        asked = {**dataclasses.asdict(state), "name": job.name, "attempt": job.attempt} if job and state else None
        stages.append({**dataclasses.asdict(now), "job": asked})
    said = {key: info.get(key) for key in ("started", "by", "note", "commit")}
    names = {"experiment": found.experiment, "run_id": found.run_id, "folder": str(found.path)}
    return {**names, **said, "stages": stages, "outcome": dataclasses.asdict(outcome(found))}


def _over(found: RunDir) -> bool:
    """Whether nothing more happens by itself: all promoted, or one stage ended without."""
    from tasks.ladder_state import ENDED, stages_now

    states = [stage.state for stage in stages_now(found)]
    return all(state == "promoted" for state in states) or any(state in ENDED - {"promoted"} for state in states)


def _print_ladder(name: str, description: str, rows: list[dict[str, Any]]) -> None:
    """Print the resolved stages, one column each: the real recipe, and below it what a rehearsal trains instead."""
    from rich.table import Table

    from tasks.cli.console import console

    table = Table(title=f"{name}: {description}", title_justify="left")
    table.add_column("")
    for row in rows:
        table.add_column(row["stage"], overflow="fold")
    for key in rows[0]:
        if key not in ("stage", "rehearsal"):
            table.add_row(key.replace("_", " "), *(_cell(row[key]) for row in rows))
    rehearsed = next((row["rehearsal"] for row in rows if row["rehearsal"]), None)
    if rehearsed is not None:
        table.add_section()
        for key in rehearsed:
            cells = (_cell(row["rehearsal"][key]) if row["rehearsal"] else "" for row in rows)
            table.add_row(f"rehearsal: {key.replace('_', ' ')}", *cells)
    console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_cell(inner) for inner in value) or "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
