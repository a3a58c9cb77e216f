"""``python -m training.train STAGE_DIR``: do what the folder's ``config.json`` says, record it in ``metrics.jsonl``.

The job begins where its newest sound checkpoint ended, so starting it again is always right. SIGUSR1 makes it save
and exit 0; a signal that kills one of its processes kills it in the same way. Exit code 2: the order is refused.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from training import data, parallel, precision, step_time
from training.checkpoint import Checkpointer, Progress, Resume, find
from training.config import METRICS, ConfigError, Span, TrainConfig, read_config
from training.emulate import Emulator, held_out_loss
from training.manifest import Purpose
from training.metrics import Records, header, step_record
from training.model import GPT
from training.optimizer import AdamW, clip
from training.parallel import REFUSED, StopRequest, TrainingError, World


@dataclass(frozen=True)
class Order:
    """All that is decided before processes start."""

    stage_dir: Path
    config: TrainConfig
    corpus: data.Corpus
    resume: Resume
    processes: int
    stop: StopRequest


def train(order: Order, world: World) -> None:
    """Train from where the stage is to its last step; every process runs this, the first one writes."""
    config, corpus = order.config, order.corpus
    torch.manual_seed(config.seed)
    model = GPT(config.model, config.seed).to(world.device)
    optimizer = AdamW(model, config.optimizer)
    checkpointer = Checkpointer(order.stage_dir, config, corpus.fingerprint, model, optimizer, world)
    stream = data.Stream(corpus.train, config.sequence_length, config.seed)
    held_out = data.held_out_samples(corpus, config.held_out.sequences, config.sequence_length)
    emulator = Emulator(model, stream, world, config.gpus, config.reduction, config.precision)
    records = Recorder(order, world)

    def evaluate(at: str) -> None:
        loss = held_out_loss(model, held_out, world, config.precision)
        tokens = progress.cursor * config.sequence_length
        records.write("held_out", step=progress.step, tokens=tokens, loss=loss, at=at, sequences=len(held_out))

    def save(purpose: Purpose, saved: bool = False) -> None:
        written = checkpointer.save(progress, purpose)
        records.write("checkpoint", **written, **({"saved": True} if saved else {}))

    progress = checkpointer.load(order.resume)
    world.check_equal(dict(model.named_parameters()))
    if not order.resume.own:
        evaluate("start")
    for span, step in steps(config, progress):
        begin = time.perf_counter()
        result = emulator.gradients(progress.cursor, span.batch_sequences, bool(order.stop))
        with result.timed("optimizer"):
            grad_norm = clip(model.parameters(), config.optimizer.clip)
            learning_rate = span.learning_rate * span.schedule.factor(step)
            if math.isfinite(grad_norm):
                optimizer.step(learning_rate)
        before, progress = progress, Progress(step, progress.cursor + span.batch_sequences)
        records.step(span, progress, result.seconds | {"wall": time.perf_counter() - begin},
                     loss=result.loss, grad_norm=grad_norm, learning_rate=learning_rate)  # fmt: skip
        if not math.isfinite(grad_norm):
            raise TrainingError(f"step {step}: loss {result.loss}, gradient norm {grad_norm}; weights were not updated")
        purpose = due(config, step)
        if purpose == "final":
            evaluate("end")
        elif purpose == "hand_over" or crosses(config, before, progress):
            evaluate("step")
        if purpose or result.stop:
            save(purpose or "periodic", saved=result.stop)
        if result.stop:
            return


def steps(config: TrainConfig, progress: Progress) -> Iterator[tuple[Span, int]]:
    """Yield the steps that remain, each with its span; the first must be the one after ``progress``."""
    remaining = [(span, n) for span in config.spans for n in range(span.first_step, span.last_step + 1)]
    todo = [(span, n) for span, n in remaining if n > progress.step]
    numbers = [n for _, n in todo]
    if numbers != list(range(progress.step + 1, progress.step + 1 + len(numbers))):
        raise ConfigError(f"spans: step {progress.step} is done, and what follows it is not every step once: {numbers}")
    yield from todo


def due(config: TrainConfig, step: int) -> Purpose | None:
    """Return why a checkpoint is written after ``step``, if one is: nobody goes on from a probe."""
    if config.spans[-1].phase == "probe":
        return None
    if step == config.last_step:
        return "final"
    if step == config.hand_over_step:
        return "hand_over"
    return "periodic" if step % config.checkpointing.every_steps == 0 else None


def crosses(config: TrainConfig, before: Progress, after: Progress) -> bool:
    """Whether a step passes a multiple of ``held_out.every_tokens``."""
    every, length = config.held_out.every_tokens, config.sequence_length
    return every is not None and after.cursor * length // every > before.cursor * length // every


class Recorder:
    """Writes records in the first process, nothing in the others."""

    def __init__(self, order: Order, world: World) -> None:
        """Open the file and write the attempt's header."""
        self.config = order.config
        self.records = Records(order.stage_dir / METRICS, self.config.attempt) if world.first else None
        said = header(order.config, order.corpus, order.processes, order.resume.to_json())
        self.write("header", **said)

    def write(self, kind: str, **values: object) -> None:
        """Append one record."""
        if self.records:
            self.records.write(kind, values)

    def step(self, span: Span, progress: Progress, seconds: dict[str, float], **values: float) -> None:
        """Append the record of a step just done."""
        config, batch = self.config, span.batch_sequences
        place = {"step": progress.step, "tokens": progress.cursor * config.sequence_length, "phase": span.phase}
        times = step_record(config, progress.step, batch, seconds, config.attempt)
        self.write("step", **place, batch=batch, **values, **times)


def prepare(stage_dir: Path) -> Order:
    """Read and check all that can be wrong with an order before any process starts."""
    config = read_config(stage_dir)
    attempt = os.environ.get("SCALEUP_ATTEMPT")
    if attempt is not None:
        config = dataclasses.replace(config, attempt=int(attempt))
    precision.refuse_unknown(config.precision)
    processes = parallel.processes_for(config)
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
    parallel.run(
        lambda world: _train(order, world), order.processes, parallel.gpus_suffice(order.config, order.processes)
    )
    return 0


def _train(order: Order, world: World) -> None:
    """Train; say in one sentence why that cannot be, where the reason is known."""
    try:
        train(order, world)
    except (ConfigError, TrainingError) as error:
        if world.first:
            print(f"training: {error}", file=sys.stderr, flush=True)
        raise SystemExit(REFUSED if isinstance(error, ConfigError) else 1) from error


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is written; taking torch apart in good order would take another second or two
