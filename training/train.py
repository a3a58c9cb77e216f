"""``python -m training.train STAGE_DIR``: do what the folder's ``config.json`` says, record it in ``metrics.jsonl``.

The job begins where its newest sound checkpoint ended, so starting it again is always right. SIGUSR1 makes it save
and exit 0; a signal that kills one of its processes kills it in the same way. Exit code 2: the order is refused.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

from training import data, precision, step_time
from training.checkpoint import find
from training.config import ConfigError, read_config
from training.loop import Loop, Order
from training.processes import REFUSED, StopRequest, TrainingError, World, gpus_suffice, processes_for, run


def prepare(stage_dir: Path) -> Order:
    """Read and check all that can be wrong with an order before any process starts."""
    config = read_config(stage_dir)
    attempt = os.environ.get("SCALEUP_ATTEMPT")
    if attempt is not None:
        config = dataclasses.replace(config, attempt=int(attempt))
    precision.refuse_unknown(config.precision)
    processes = processes_for(config)
    if config.model.vocabulary < data.BYTES:
        raise ConfigError(f"model.vocabulary: {config.model.vocabulary} tokens cannot name {data.BYTES} bytes")
    if config.emulation is not None:
        step_time.refuse_impossible(config.emulation, config.gpus)
    corpus = data.load(config.data)
    resume = find(stage_dir, config, corpus.fingerprint)
    for problem in resume.unsound:
        print(f"training: passed over a checkpoint: {problem}", file=sys.stderr)
    return Order(stage_dir, config, corpus, resume, processes, StopRequest())


def main(arguments: list[str]) -> int:
    """Run the job of one stage folder; return the exit code."""
    if len(arguments) != 1:
        print("usage: python -m training.train STAGE_DIR", file=sys.stderr)
        return REFUSED
    try:
        order = prepare(Path(arguments[0]))
    except ConfigError as error:
        print(f"training: {error}", file=sys.stderr)
        return REFUSED
    order.stop.listen()
    run(lambda world: _train(order, world), order.processes, gpus_suffice(order.config, order.processes))
    return 0


def _train(order: Order, world: World) -> None:
    """Train; say in one sentence why that cannot be, where the reason is known."""
    try:
        Loop(order, world).run()
    except (ConfigError, TrainingError) as error:
        if world.first:
            print(f"training: {error}", file=sys.stderr, flush=True)
        raise SystemExit(REFUSED if isinstance(error, ConfigError) else 1) from error


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is written; taking torch apart in good order would take another second or two
