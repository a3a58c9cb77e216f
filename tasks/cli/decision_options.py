"""How a person's decisions on a run are written; :mod:`tasks.cli.decisions` acts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tasks.cli.command import command

if TYPE_CHECKING:
    from tasks.cli.command import Commands


def add(commands: Commands) -> None:
    """Add them all."""
    _promote(commands)
    _amend(commands)
    _tell(commands)
    _checkpoints(commands)


def _promote(commands: Commands) -> None:
    promote = command(
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
    amend = command(
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
    tell = command(
        commands, "tell", "tell people what is new in a run, or try a channel",
        "Runs tell by themselves what configs/telling.yaml asks for. This tells what is new by hand, or sends a trial.",
    )  # fmt: skip
    tell.add_argument("run", metavar="RUN", nargs="?", default="latest", help="default: latest")
    tell.add_argument("--try", metavar="CHANNEL", dest="try_channel", help="send a trial message by this channel alone")
    tell.add_argument("--owner", default="", help="with --try: the address that the word owner stands for")


def _checkpoints(commands: Commands) -> None:
    top = command(
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
