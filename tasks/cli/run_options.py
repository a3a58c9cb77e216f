"""How commands about runs are written; :mod:`tasks.cli.runs` acts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.cli.command import command

if TYPE_CHECKING:
    from tasks.cli.command import Commands


def add(commands: Commands) -> None:
    """Add them all."""
    _run(commands)
    _status(commands)
    _validate(commands)
    _report(commands)
    _reap(commands)


def _run(commands: Commands) -> None:
    run = command(
        commands, "run", "climb an experiment's stages here, without Airflow",
        "Climb all stages of an experiment in order: forecast, launch, watch, evaluate, promote. Ctrl-C ends the "
        "running job; if this process dies otherwise, the job lives on, and --run-id goes on with the run.",
    )  # fmt: skip
    run.add_argument("experiment", metavar="EXPERIMENT", help="name of a file in configs/experiments, without .yaml")
    run.add_argument("--cluster", help="where its jobs run, instead of the cluster that the experiment names")
    run.add_argument("--first", metavar="STAGE", help="first stage, for example gpus_64")
    run.add_argument("--last", metavar="STAGE", help="last stage")
    run.add_argument("--seed", type=int, help="decides weights, data order and modelled noise")
    run.add_argument("--note", default="", help="why you start it; kept with the run")
    run.add_argument("--run-id", help="go on with this unfinished run, or give a new one this id")
    run.add_argument("--plain", action="store_true", help="a line a change, also on a terminal")


def _status(commands: Commands) -> None:
    status = command(
        commands, "status", "how a run stands",
        "Show each stage's state, step, loss, speed and gates, read from the run's folder alone.",
    )  # fmt: skip
    status.add_argument("run", metavar="RUN", nargs="?", default="latest", help="default: latest")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    status.add_argument("--follow", action="store_true", help="keep showing it until the run is over")


def _validate(commands: Commands) -> None:
    validate = command(
        commands, "validate", "check experiments and print their resolved stages",
        "Check experiment and cluster files, all problems at once, and print what each stage would be.",
    )  # fmt: skip
    validate.add_argument("experiments", metavar="EXPERIMENT", nargs="*", help="default: all; a name or a path")
    validate.add_argument("--cluster", help="on this cluster instead of the experiment's own")


def _report(commands: Commands) -> None:
    report = command(
        commands, "report", "write a run's reports and say where they are",
        "Write the report of every stage and of the ladder, HTML and Markdown, from the run's folder.",
    )  # fmt: skip
    report.add_argument("run", metavar="RUN", nargs="?", default="latest", help="default: latest")


def _reap(commands: Commands) -> None:
    reap = command(
        commands, "reap", "end jobs whose run is over",
        "List the jobs that nobody needs any more (their stage was stopped or promoted, nobody has looked at them for "
        "orphan_hours, no run's folder names them), and end them.",
    )  # fmt: skip
    reap.add_argument("--list", action="store_true", help="only list them")
