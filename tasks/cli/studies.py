"""What is learned from past runs and data: other gates, noise, the predictor, token files."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from tasks.errors import ScaleupError
from tasks.run import find_run, ladder_of


def rejudge(options: Namespace) -> int:
    """Judge runs that are over anew under another policy."""
    from tasks.cli.console import console
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
        console().print(show(judged))
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
    from tasks.cli.console import console

    table = read_table(Path(options.file), options.family)
    if options.learn:
        print(learn_from(table))
        return 0
    with progress() as told:
        done = test(table, options.prior, told)
    if options.json:
        print(json.dumps(done.as_json(), indent=1, allow_nan=False))
    else:
        show(done, console())
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
