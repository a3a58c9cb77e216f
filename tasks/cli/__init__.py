"""``scaleup``: the command line. Only parsing here; what a command needs is imported when it is called."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from tasks.cli import decision_options, night_options, run_options, study_options
from tasks.errors import ConfigInvalid, ScaleupError

# How a subject's commands are written, and the module with a function of each command's name that acts.
SUBJECTS = (
    (run_options, "runs"), (decision_options, "decisions"), (study_options, "studies"), (night_options, "nights"),
)  # fmt: skip
_EXAMPLES = """examples:
  scaleup validate                          check every experiment and print its resolved stages
  scaleup run gpt_stdlib                    climb 8 -> 64 -> 1000 GPUs here, without Airflow
  scaleup run gpt_stdlib --last gpus_64     only the first two stages
  scaleup run gpt_stdlib --run-id 20260102_030405      go on with an unfinished run
  scaleup status latest --follow            watch the newest run, wherever it was started
  scaleup promote latest gpus_64 --because "the spike at step 120 was a bad node, replaced"
  scaleup report latest                     write the reports again and say where they are
  scaleup rejudge latest --gates strict.yaml            what would other gates have said?
  scaleup calibrate gpt_stdlib --repeats 5              measure the noise that gates allow for
  scaleup tokenize web.jsonl --tokenizer tokenizer.json --out /data/web     make token files for `data:`
  scaleup backtest history.csv              how well would small runs of yours have foretold large ones?
  scaleup nightly status                    what did the scheduled runs notice?

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
    try:
        return int(getattr(importlib.import_module(f"tasks.cli.{options.acts}"), options.command)(options))
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
    for options, acts in SUBJECTS:
        known = set(commands.choices)
        options.add(commands)
        for name in set(commands.choices) - known:
            commands.choices[name].set_defaults(acts=acts)
    return top
