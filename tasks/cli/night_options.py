"""How ``scaleup nightly`` and ``scaleup ack`` are written; :mod:`tasks.cli.nights` acts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.cli.command import Commands

_NIGHTLY = """a night's cases are in configs/nightly.yaml; CASE/SERIES is for example gpt_stdlib-laptop/held_out_loss

  scaleup nightly run                      what is due tonight, here, without Airflow; again: what is left of it
  scaleup nightly status                   the newest night: verdicts, open incidents, what to type
  scaleup nightly report                   write its page again and say where it is
  scaleup nightly accept CASE/SERIES --because "the new tokenizer costs 3%"    this level is right from now on
  scaleup nightly import FILE.csv          begin with a team's past (case,night,hardware,environment and series)
  scaleup nightly export FILE.csv          every measurement of every case
"""


def add(commands: Commands) -> None:
    """Add ``scaleup nightly`` with its verbs, and ``scaleup ack``."""
    nightly = commands.add_parser(
        "nightly",
        help="scheduled runs at small scale, and what they noticed",
        description="Run a night's cases, show what they noticed, accept a new level, import and export the past.",
        epilog=_NIGHTLY,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = nightly.add_subparsers(dest="verb", required=True, metavar="VERB")
    run = verbs.add_parser("run", help="run what is due, or what is left of a night")
    run.add_argument("--night", metavar="DATE", help="which night, 2026-12-31; default: this one")
    run.add_argument("--case", metavar="CASE", action="append", default=[], help="only this case; may be repeated")
    run.add_argument("--release", action="store_true", help="also the cases of cadence release and weekly")
    for name, line in (("status", "show the newest night"), ("report", "write its page again")):
        verb = verbs.add_parser(name, help=line)
        verb.add_argument("--night", metavar="DATE", help="which night; default: the newest")
    accept = verbs.add_parser("accept", help="take the level of an open incident for the baseline")
    _incident(accept, "why the new level is right; the page quotes it")
    for name, line in (("import", "take measurements from a table"), ("export", "write all measurements as a table")):
        verb = verbs.add_parser(name, help=line)
        verb.add_argument("file", metavar="FILE.csv")
    said = "Say that you have seen an open incident: nights are red for it no more. It stays open until it recovers."
    ack = commands.add_parser("ack", help="quiet an open incident of the nightly runs", description=said)
    _incident(ack, "what you know of it; the page quotes it")


def _incident(command: argparse.ArgumentParser, why: str) -> None:
    command.add_argument("incident", metavar="CASE/SERIES", help="as `scaleup nightly status` names it")
    command.add_argument("--because", required=True, metavar="WHY", help=why)
    command.add_argument("--by", metavar="NAME", help="who decided, if not the user of this terminal")
