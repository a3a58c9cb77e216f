"""What each command of ``scaleup`` does; :mod:`tasks.cli` parses, this acts and prints."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from tasks.errors import ConfigInvalid, ScaleupError
from tasks.run import find_run, ladder_of, user
from tasks.stage_dir import RunDir, StageDir, read_json

if TYPE_CHECKING:
    from rich.console import Console


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
        from tasks.terminal.ladder_view import render

        _console().print(render(found))
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


def promote(options: Namespace) -> int:
    """Promote a stage by a person's word."""
    from tasks.promote import override

    stage = _stage(options.run, options.stage)
    record = override(stage, options.because, options.by or user())
    if record.get("kind") == "leave":
        print(f"{stage.name} has {record['person']}'s leave to go on: {record['because']}")
        print(f"it starts when its run goes on: in Airflow clear its tasks, or scaleup run {_go_on(stage.run)}")
    else:
        who = record["person"] or "its gates"
        print(f"{stage.name} is promoted by {who}: {record['because']}\n{record['checkpoint']['path']}")
    return 0


def checkpoints(options: Namespace) -> int:
    """Look at a run's checkpoints."""
    from tasks import checkpoint_commands

    return int(getattr(checkpoint_commands, options.verb)(options))


def amend(options: Namespace) -> int:
    """Change the recipe of a run under way, from a checkpoint on."""
    from tasks.amend import Asked, amend

    stage = _stage(options.run, options.stage)
    asked = Asked.said(options.set, options.skip_samples, options.image, options.code, options.from_step)
    done = amend(stage, asked, because=options.because, by=options.by or user())
    print(f"revision {done.revision.number} of the recipe holds for {stage.name} after step {done.revision.step}:")
    print("\n".join(f"  {line}" for line in done.revision.said))
    if done.attempt is not None:
        print(f"attempt {done.attempt} goes on under it; whoever watched the stage watches on")
    else:
        print(f"it holds when the run goes on: in Airflow clear its tasks, or scaleup run {_go_on(stage.run)}")
    return 0


def tell(options: Namespace) -> int:
    """Tell what is new in a run, or try a channel."""
    from tasks.config.telling import load_telling
    from tasks.telling import tell as told
    from tasks.telling import try_channel

    telling = load_telling()
    if options.try_channel is None:
        print("\n".join(told(find_run(options.run))) or "there is nothing new to tell, or nobody to tell it to")
        return 0
    channel = telling.channels.get(options.try_channel)
    if channel is None:
        there = ", ".join(sorted(telling.channels)) or "none, see configs/telling.yaml"
        raise ConfigInvalid(f"--try {options.try_channel}: there is no such channel; there are: {there}")
    try_channel(options.try_channel, channel, options.owner)
    print(f"{options.try_channel} took a trial message")
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


def rejudge(options: Namespace) -> int:
    """Judge runs that are over anew under another policy."""
    from tasks.policy import read_policy
    from tasks.rejudge import refuse_unfinished
    from tasks.rejudge import rejudge as judged_anew
    from tasks.terminal.rejudge_view import plain, show

    found = list({run.path: run for run in map(find_run, options.runs)}.values())
    for one in found:
        refuse_unfinished(one)
    ladders = [ladder_of(one) for one in found]
    policy = read_policy(options.gates, ladders)
    asked = [(policy.gates(ladder), policy.rules(ladder)) for ladder in ladders]  # all of them, before any is judged
    judged = [(one, judged_anew(one, *policies)) for one, policies in zip(found, asked, strict=True)]
    if options.json:
        print(json.dumps(plain(options.gates, judged), indent=1))
    else:
        _console().print(show(judged))
    return 0


def calibrate(options: Namespace) -> int:
    """Measure the noise of a stage by repeats."""
    from tasks.calibrate import Order, calibrate
    from tasks.terminal import teller

    order = Order(options.experiment, options.repeats, options.stage, options.cluster, options.vary_seed, options.id)
    with teller(sys.stdout) as told:
        return calibrate(order, told, reference=options.reference)


def backtest(options: Namespace) -> int:
    """Test the throughput predictor on a table of past runs."""
    from pathlib import Path

    from tasks.backtest import backtest as test
    from tasks.backtest import learn_from, read_table
    from tasks.backtest.show import progress, show

    table = read_table(Path(options.file), options.family)
    if options.learn:
        print(learn_from(table))
        return 0
    with progress() as told:
        done = test(table, options.prior, told)
    if options.json:
        print(json.dumps(done.as_json(), indent=1, allow_nan=False))
    else:
        show(done, _console())
    return 0


def tokenize(options: Namespace) -> int:
    """Make a folder of tokens, or compare one with its index."""
    from pathlib import Path

    from tasks.tokenize import check, tokenize
    from tasks.tokenize.progress import shown

    if options.check:
        index, out = check(Path(options.check)), options.check
    elif not (options.inputs and options.out and options.tokenizer):
        raise ScaleupError("name the inputs, --tokenizer FILE (or bytes) and --out FOLDER; or --check FOLDER alone")
    else:
        settings = {name: getattr(options, name) for name in ("tokenizer", "document_end", "field", "held_out_percent")}
        out = options.out
        with shown() as tell:
            index = tokenize(options.inputs, Path(out), tell=tell, **settings)
    for name, part in index.parts.items():
        print(f"{name}: {part.tokens:,} tokens of {part.documents:,} documents, {index.dtype}")
    print(f"{out}: vocabulary {index.vocabulary}, fingerprint {index.fingerprint[:12]}")
    return 0


def nightly(options: Namespace) -> int:
    """Do one of the verbs of the nightly runs."""
    from tasks import nightly_commands

    return int(getattr(nightly_commands, options.verb.replace("import", "import_"))(options))


def ack(options: Namespace) -> int:
    """Quiet an open incident."""
    from tasks.nightly import incidents

    print(incidents.acknowledge(options.incident, options.because, options.by))
    return 0


def _stage(said: str, name: str) -> StageDir:
    found = find_run(said)
    names = [decided.name for decided in ladder_of(found).stages]
    if name not in names:
        raise ScaleupError(
            f"{found.experiment}/{found.run_id} has no stage {name!r}; its stages are {', '.join(names)}"
        )
    return found.stage(name)


def _go_on(found: RunDir) -> str:
    return f"{found.experiment} --run-id {found.run_id}"


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
    _console().print(table)


def _console() -> Console:
    """Return where tables are printed: as wide as the terminal, or wide enough where there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_cell(inner) for inner in value) or "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
