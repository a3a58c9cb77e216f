"""``scaleup``: the command line. Only parsing here; what a command needs is imported when it is called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.errors import ConfigInvalid, ScaleupError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_EXAMPLES = """examples:
  scaleup validate                          check every experiment and print its resolved stages
  scaleup run gpt_stdlib                    climb 8 -> 64 -> 1000 GPUs here, without Airflow
  scaleup run gpt_stdlib --last gpus_64     only the first two stages
  scaleup run gpt_stdlib --run-id 20260102_030405      go on with an unfinished run
  scaleup status latest --follow            watch the newest run, wherever it was started
  scaleup promote latest gpus_64 --because "the spike at step 120 was a bad node, replaced"
  scaleup report latest                     write the reports again and say where they are

RUN is experiment/run_id, a run id, `latest`, or experiment/latest.
exit codes: 0 done, 1 refused or failed, 2 wrong usage or configuration, 130 Ctrl-C
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a user's error is one sentence on stderr, without a traceback."""
    said = list(sys.argv[1:] if arguments is None else arguments)
    if said[:1] == ["demo"]:  # it has options of its own, and explains them itself
        from tasks.demo import main as demo

        return demo(said[1:])
    options = parser().parse_args(said)
    from tasks import commands

    try:
        return int(getattr(commands, options.command)(options))
    except ConfigInvalid as error:
        print(error, file=sys.stderr)
        return 2
    except ScaleupError as error:
        print(f"scaleup {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `scaleup status | head`: whoever read has enough
        sys.stderr.close()
        return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="scaleup",
        description="Take a training recipe from 8 GPUs to 1000, stage by stage, each granted by measured evidence.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("demo", help="the whole ladder in Airflow and MLflow, live in this terminal", add_help=False)
    _run(commands)
    _status(commands)
    _validate(commands)
    _promote(commands)
    _report(commands)
    return top


def _run(commands: Commands) -> None:
    run = _command(
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
    status = _command(
        commands, "status", "how a run stands",
        "Show each stage's state, step, loss, speed and gates, read from the run's folder alone.",
    )  # fmt: skip
    status.add_argument("run", metavar="RUN", nargs="?", default="latest", help="default: latest")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    status.add_argument("--follow", action="store_true", help="keep showing it until the run is over")


def _validate(commands: Commands) -> None:
    validate = _command(
        commands, "validate", "check experiments and print their resolved stages",
        "Check experiment and cluster files, all problems at once, and print what each stage would be.",
    )  # fmt: skip
    validate.add_argument("experiments", metavar="EXPERIMENT", nargs="*", help="default: all; a name or a path")
    validate.add_argument("--cluster", help="on this cluster instead of the experiment's own")


def _promote(commands: Commands) -> None:
    promote = _command(
        commands, "promote", "promote a stage by your own word",
        "Promote a stage whose verdict is not PASS, or grant leave to one that its forecast or an early gate refused. "
        "The checkpoint is verified all the same, and the report names you and your reason.",
    )  # fmt: skip
    promote.add_argument("run", metavar="RUN", help="experiment/run_id, a run id, or latest")
    promote.add_argument("stage", metavar="STAGE", help="for example gpus_64")
    promote.add_argument("--because", required=True, metavar="WHY", help="the reason; the report quotes it")
    promote.add_argument("--by", metavar="NAME", help="who decided, if not the user of this terminal")


def _report(commands: Commands) -> None:
    report = _command(
        commands, "report", "write a run's reports and say where they are",
        "Write the report of every stage and of the ladder, HTML and Markdown, from the run's folder.",
    )  # fmt: skip
    report.add_argument("run", metavar="RUN", nargs="?", default="latest", help="default: latest")


def _command(commands: Commands, name: str, line: str, text: str) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=line, description=text)


if __name__ == "__main__":
    sys.exit(main())
