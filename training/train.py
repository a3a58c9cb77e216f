"""``python -m training.train STAGE_DIR``: do what the folder's ``config.json`` says, record it in ``metrics.jsonl``.

Called alone it forks the processes that it needs; started by torchrun it is one of them. The job begins where its
newest sound checkpoint ended, so starting it again is always right. SIGUSR1 makes it save and exit 0; a signal that
kills one of its processes kills it in the same way. Exit code 2: the order is refused.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import traceback
from contextlib import closing
from pathlib import Path

from training import data, engine, manifest, precision, step_time
from training.checkpoint import Resume, find
from training.config import ConfigError, DataError, read_config
from training.loop import Loop, Order
from training.processes import (
    REFUSED,
    Started,
    StopRequest,
    TrainingError,
    World,
    gpus_suffice,
    processes_for,
    run,
)
from training.restore import restore
from training.store import StoreError


def prepare(stage_dir: Path, started: Started | None = None) -> Order:
    """Read and check all that can be wrong with an order before processes start, or meet."""
    config = read_config(stage_dir)
    attempt = os.environ.get("SCALEUP_ATTEMPT")
    if attempt is not None:
        config = dataclasses.replace(config, attempt=int(attempt))
    precision.refuse_impossible(config)
    processes = processes_for(config, started)
    engine.prepare(config, processes)
    if config.emulation is not None:
        step_time.refuse_impossible(config.emulation, config.gpus)
    dataset = data.open_dataset(config.data, config.model.vocabulary)
    if dataset.orders.documents == "cut":
        raise ConfigError("data.documents: no layout masks attention at documents' ends yet; write packed")
    alone = started is None or started.rank == 0  # the others are told: a thousand need not sum what one can
    resume = find(stage_dir, config, dataset.fingerprint, restore(stage_dir, config)) if alone else Resume()
    for problem in resume.unsound:
        print(f"training: passed over a checkpoint: {problem}", file=sys.stderr)
    if resume.lost_steps and resume.checkpoint:
        print(f"training: {resume.lost_steps} steps are lost, step {resume.checkpoint.step} is whole", file=sys.stderr)
    return Order(stage_dir, config, dataset, resume, processes, StopRequest())


def main(arguments: list[str]) -> int:
    """Run the job of one stage folder; return the exit code."""
    if len(arguments) != 1:
        print("usage: python -m training.train STAGE_DIR", file=sys.stderr)
        return REFUSED
    try:
        started = Started.found()
        order = prepare(Path(arguments[0]), started)
        gpus = gpus_suffice(order.config, order.processes, started)
    except ConfigError as error:
        return _refuse(error)
    except StoreError as error:  # it may answer the next attempt
        print(f"training: {error}", file=sys.stderr, flush=True)
        return 1
    order.stop.listen()
    run(lambda world: _train(order, world), order.processes, gpus, started)
    return 0


def _refuse(error: ConfigError) -> int:
    print(f"training: {error}", file=sys.stderr, flush=True)
    return REFUSED


def _train(order: Order, world: World) -> None:
    """Train; say in one sentence why that cannot be, where the reason is known."""
    try:
        order = agreed(order, world)
    except ConfigError as error:  # of this process alone, so it says it itself
        raise SystemExit(_refuse(error)) from error
    try:
        loop = Loop(order, world)
        with closing(loop.samples):
            loop.run()
    except (ConfigError, TrainingError) as error:
        if world.first or isinstance(error, DataError):  # what one process reads, no other may have met
            print(f"training: {error}", file=sys.stderr, flush=True)
        raise SystemExit(REFUSED if isinstance(error, ConfigError) else 1) from error


def agreed(order: Order, world: World) -> Order:
    """Return the order with the checkpoint that the first process chose.

    Raises ConfigError in a process that reads other orders or data than the first: on another machine a folder of the
    same name may hold something else.
    """
    orders = manifest.digest_of(dataclasses.replace(order.config, attempt=0).to_json())
    mine = {"orders": orders, "data": order.dataset.fingerprint}
    theirs, resume = world.from_first((mine, order.resume))
    for what, digest in mine.items():
        if theirs[what] != digest:
            here = f"rank {world.rank} on {socket.gethostname()}"
            raise ConfigError(f"{here} reads other {what} than rank 0; the same files must be on all machines")
    return dataclasses.replace(order, resume=resume)


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is written; taking torch apart in good order would take another second or two
