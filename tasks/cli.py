"""``scaleup``: the command line. Only parsing here; what a command needs is imported when it is called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks import nightly_cli
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
    _amend(commands)
    _tell(commands)
    _checkpoints(commands)
    _report(commands)
    _reap(commands)
    _rejudge(commands)
    _calibrate(commands)
    _backtest(commands)
    _tokenize(commands)
    nightly_cli.add(commands)
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


_AMENDED = """KEY is one of the stage's recipe (optimizer.clip, layout.tensor, compression.bits, precision, ...),
learning_rate, hours, or one of its cluster's file behind `cluster.` (cluster.launcher.nccl.interfaces=eth1). The
change holds for this stage after the checkpoint and for all behind it; stages before stay as they were. Model,
sequence length, data, seed, schedule, batches, steps and gates make another run.

examples:
  scaleup amend latest gpus_64 --set learning_rate=0.001 --because "spikes since step 4000"
  scaleup amend latest gpus_64 --from-step 4000 --skip-samples 512000:514048 --because "a broken shard"
  scaleup amend latest gpus_1000 --image registry/trainer@sha256:... --because "NCCL with the fix"
"""


def _amend(commands: Commands) -> None:
    amend = _command(
        commands, "amend", "change the recipe of a run under way",
        "End a stage's job, and go on from a checkpoint under a new revision of the recipe. Report and MLflow show it.",
    )  # fmt: skip
    amend.epilog, amend.formatter_class = _AMENDED, argparse.RawDescriptionHelpFormatter
    amend.add_argument("run", metavar="RUN", help="experiment/run_id, a run id, or latest")
    amend.add_argument("stage", metavar="STAGE", help="for example gpus_64")
    amend.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="a new value; again for more")
    amend.add_argument(
        "--skip-samples", metavar="FIRST:END", help="samples of the stream that are left out, from here on"
    )
    amend.add_argument("--image", metavar="NAME@sha256:...", help="another image for its jobs")
    amend.add_argument("--code", action="store_true", help="run today's code (on Slurm; elsewhere jobs always do)")
    amend.add_argument(
        "--from-step", type=int, metavar="STEP", help="of the checkpoint; default: save, take the newest"
    )
    amend.add_argument("--because", required=True, metavar="WHY", help="the reason; the report quotes it")
    amend.add_argument("--by", metavar="NAME", help="who decided, if not the user of this terminal")


def _tell(commands: Commands) -> None:
    tell = _command(
        commands, "tell", "tell people what is new in a run, or try a channel",
        "Runs tell by themselves what configs/telling.yaml asks for. This tells what is new by hand, or sends a trial.",
    )  # fmt: skip
    tell.add_argument("run", metavar="RUN", nargs="?", default="latest", help="default: latest")
    tell.add_argument("--try", metavar="CHANNEL", dest="try_channel", help="send a trial message by this channel alone")
    tell.add_argument("--owner", default="", help="with --try: the address that the word owner stands for")


def _checkpoints(commands: Commands) -> None:
    top = _command(
        commands, "checkpoints", "what checkpoints a run has, where, and whether they are whole",
        "Look at a run's checkpoints in its folder, the store and the second region; export one. None is changed.",
    )  # fmt: skip
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, line in (("ls", "list them"), ("verify", "read every byte; exit code 1 where one is damaged"),
                       ("show", "all that a manifest says"), ("diff", "in what two of them differ"),
                       ("export", "write a model's weights as safetensors")):  # fmt: skip
        verb = verbs.add_parser(name, help=line, description=line)
        verb.add_argument("run", metavar="RUN", help="experiment/run_id, a run id, or latest")
        one = name in ("show", "diff", "export")
        verb.add_argument("stage", metavar="STAGE", nargs=None if one else "?", help="for example gpus_64")
        if name != "ls":
            said = "the first of the two" if name == "diff" else "default: the newest" if one else "default: all"
            verb.add_argument("--step", type=int, metavar="STEP", required=name == "diff", help=said)
        if name == "export":
            verb.add_argument("--out", metavar="FOLDER", required=True, help="where they go; it must not exist")
        if name == "diff":
            verb.add_argument("--to", type=int, metavar="STEP", help="the second; default: the newest")


def _report(commands: Commands) -> None:
    report = _command(
        commands, "report", "write a run's reports and say where they are",
        "Write the report of every stage and of the ladder, HTML and Markdown, from the run's folder.",
    )  # fmt: skip
    report.add_argument("run", metavar="RUN", nargs="?", default="latest", help="default: latest")


def _reap(commands: Commands) -> None:
    reap = _command(
        commands, "reap", "end jobs whose run is over",
        "List the jobs that nobody needs any more (their stage was stopped or promoted, nobody has looked at them for "
        "orphan_hours, no run's folder names them), and end them.",
    )  # fmt: skip
    reap.add_argument("--list", action="store_true", help="only list them")


_GATES = """FILE is one of two:
  stages:                        laid over the gates that the runs had, stage by stage:
    gpus_64:                     thresholds are merged, a gate named anew is added,
      canary: {at_least: 0.9}    `dropped` takes one away, nothing behind it means its defaults
      loss_near_baseline: {shadow: true}
      live: {loss: {tolerance: 0.02}}     live rules of this stage
  live: {throughput: {action: stop}}      live rules of all stages; either key may stand alone
or an experiment's file (configs/experiments/x.yaml): its stages' gates and live rules stand in place of the runs'.

Each gate sees what it could see at its moment (before the stage, at its canary, at its end). The runs' own gates are
judged anew beside it: a change that a new baseline, noise file or version makes is marked `not by the policy`. Live
rules take the records one by one; behind a restart or stop that was not made then, or was, nobody knows more. `hang`
goes by the clock of the looks, which no record keeps: one line says so.
"""


def _rejudge(commands: Commands) -> None:
    rejudge = _command(
        commands, "rejudge", "judge finished runs anew under other gates and live rules",
        "Judge runs that are over under another gate policy, and print what would have changed. Writes nothing.",
    )  # fmt: skip
    rejudge.epilog, rejudge.formatter_class = _GATES, argparse.RawDescriptionHelpFormatter
    rejudge.add_argument("runs", metavar="RUN", nargs="+", help="experiment/run_id, a run id, or latest")
    rejudge.add_argument("--gates", required=True, metavar="FILE", help="the other policy, see below")
    rejudge.add_argument("--json", action="store_true", help="print one JSON object, unchanged gates among it")


def _calibrate(commands: Commands) -> None:
    calibrate = _command(
        commands, "calibrate", "measure the noise that gates allow for",
        "Run one stage several times and write how far equal runs lie apart (throughput from launch to launch, step "
        "seconds, held-out loss) into configs/baselines, where gates look for it. Ctrl-C ends the running job.",
    )  # fmt: skip
    calibrate.add_argument("experiment", metavar="EXPERIMENT", help="name of a file in configs/experiments")
    calibrate.add_argument("--repeats", type=int, required=True, metavar="N", help="how many runs, 3 or more")
    calibrate.add_argument("--stage", metavar="STAGE", help="which stage; default: the first. Others climb up to it")
    calibrate.add_argument("--cluster", help="where its jobs run, instead of the cluster that the experiment names")
    calibrate.add_argument(
        "--vary-seed", action="store_true",
        help="give each repeat its own weights and order of data; without it only launches differ",
    )  # fmt: skip
    calibrate.add_argument(
        "--reference", action="store_true", help="also store the losses, as the baseline of loss_near_baseline"
    )
    calibrate.add_argument("--id", metavar="ID", help="go on with an interrupted calibration")


_HISTORY = """FILE.csv has a line a run, one a scale and recipe, and names its columns in the first:
  series_id           what makes runs one recipe at growing scales; three scales or more are needed
  gpus                how many
  one of              tokens_per_s_per_gpu, tokens_per_s, samples_per_s, or step_time_s with global_batch_seqs
  global_batch_seqs   with seq_len if you have it: whether the batch grew with the GPUs (weak) or stayed (strong);
                      where it is not said, weak is supposed
  family, or model    what must be left out together; comparable: no leaves a line out; others are not read

  series_id,model,gpus,tokens_per_s_per_gpu
  7b-bf16,ours 7b,8,10150
  7b-bf16,ours 7b,64,10010
  7b-bf16,ours 7b,256,9870

example: scaleup backtest history.csv --json > backtest.json
"""


def _backtest(commands: Commands) -> None:
    backtest = _command(
        commands, "backtest", "test the throughput forecast on your own past runs",
        "Fit the two smallest scales of each series (and all but the largest), foretell the largest, and print\n"
        "errors and the coverage of the 95% lower bound, beside power law, constant and USL on the same rows.",
    )  # fmt: skip
    backtest.epilog, backtest.formatter_class = _HISTORY, argparse.RawDescriptionHelpFormatter
    backtest.add_argument("file", metavar="FILE.csv", help="a table of measured throughput")
    backtest.add_argument("--json", action="store_true", help="print one JSON object")
    backtest.add_argument(
        "--prior", choices=("auto", "shipped", "left-out"), default="auto",
        help="shipped: the prior that the gates use; left-out: for each family one learned from the file's other "
        "families; auto: shipped, unless it was learned from these very series",
    )  # fmt: skip
    backtest.add_argument("--family", metavar="COLUMN", help="column that says what is left out together")
    backtest.add_argument("--learn", action="store_true", help="print the prior that the whole file teaches, and stop")


_INPUTS = """IN is a file, or a folder whose files are all read:
  *.jsonl *.ndjson (also .gz)   a document a line, its text in --field
  *.parquet                     a document a row, its text in the column --field
  anything else                 UTF-8 text, a document a file

FOLDER then holds train.bin and held_out.bin (flat uint16 or uint32), where documents end, and index.json. An experiment
reads it by `data: {sources: [{path: FOLDER}]}`.

example: scaleup tokenize web.jsonl.gz --tokenizer tokenizer.json --document-end "<|endoftext|>" --out /data/web
"""


def _tokenize(commands: Commands) -> None:
    tokenize = _command(
        commands, "tokenize", "make token files that training reads",
        "Encode text into a folder of tokens. The folder appears when it is whole; Ctrl-C leaves nothing behind.",
    )  # fmt: skip
    tokenize.epilog, tokenize.formatter_class = _INPUTS, argparse.RawDescriptionHelpFormatter
    tokenize.add_argument("inputs", metavar="IN", nargs="*", help="a file or a folder")
    tokenize.add_argument("--tokenizer", metavar="FILE", help="a JSON file of the library tokenizers, or: bytes")
    tokenize.add_argument("--out", metavar="FOLDER", help="where the tokens go; it must not exist")
    tokenize.add_argument("--document-end", metavar="TOKEN", help="a token to put behind every document; default: none")
    tokenize.add_argument("--field", default="text", help="what holds the text in JSON lines, parquet; default: text")
    tokenize.add_argument(
        "--held-out-percent", type=float, default=1.0, metavar="P",
        help="part of the documents that is kept for evaluation, chosen by the hash of their text; default: 1",
    )  # fmt: skip
    tokenize.add_argument("--check", metavar="FOLDER", help="compare every byte of a folder with its index, and stop")


def _command(commands: Commands, name: str, line: str, text: str) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=line, description=text)


if __name__ == "__main__":
    sys.exit(main())
