"""How commands that study past runs and data are written; :mod:`tasks.cli.studies` acts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tasks.cli.command import command

if TYPE_CHECKING:
    from tasks.cli.command import Commands


def add(commands: Commands) -> None:
    """Add them all."""
    _rejudge(commands)
    _calibrate(commands)
    _backtest(commands)
    _tokenize(commands)


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
    rejudge = command(
        commands, "rejudge", "judge finished runs anew under other gates and live rules",
        "Judge runs that are over under another gate policy, and print what would have changed. Writes nothing.",
    )  # fmt: skip
    rejudge.epilog, rejudge.formatter_class = _GATES, argparse.RawDescriptionHelpFormatter
    rejudge.add_argument("runs", metavar="RUN", nargs="+", help="experiment/run_id, a run id, or latest")
    rejudge.add_argument("--gates", required=True, metavar="FILE", help="the other policy, see below")
    rejudge.add_argument("--json", action="store_true", help="print one JSON object, unchanged gates among it")


def _calibrate(commands: Commands) -> None:
    calibrate = command(
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
    backtest = command(
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
    tokenize = command(
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
