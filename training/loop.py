"""The loop: a step's gradients, the update, its record; evaluations and checkpoints where they are due."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from training import data, engine
from training.checkpoint import Progress, Resume, State, shapes, weights
from training.compression import CompressedSum, place
from training.config import METRICS, ConfigError, Span, TrainConfig
from training.gradients import StepResult, all_reduce, local
from training.manifest import Purpose
from training.metrics import Records, header, step_record
from training.pace import Pace
from training.processes import StopRequest, World
from training.saving import Saver, Written
from training.update import Update, Updater
from training.uploads import Uploads


@dataclass(frozen=True)
class Order:
    """All that is decided before processes start."""

    stage_dir: Path
    config: TrainConfig
    dataset: data.Dataset
    resume: Resume
    processes: int
    stop: StopRequest


class Loop:
    """One process's part of a job; all processes go through it together, the first one writes."""

    def __init__(self, order: Order, world: World) -> None:
        """Build the model on its processes and put the state in place that the job begins from."""
        config, dataset = order.config, order.dataset
        torch.manual_seed(config.seed)
        self.order, self.config, self.world = order, config, world
        stream = dataset.stream(config.sequence_length, config.seed)
        self.samples = data.Prefetcher(stream, dataset.steps_ahead)
        self.held_out = dataset.held_out(config.held_out.sequences, config.sequence_length)
        self.compressed = CompressedSum(config.compression, place(config, world)) if config.compression else None
        self.engine = engine.engine(config, self.samples, world, self.compressed or all_reduce)
        parameters = self.engine.placed.parameters
        self.updater = Updater(self.engine.placed, world, config)
        self.state = State(weights(parameters) | self.updater.state(), world, self.compressed)
        if self.compressed and order.resume.checkpoint and not order.resume.weights_only:
            self.compressed.expect(shapes(order.resume.checkpoint.folder))
        self.records = Recorder(order, world, self.compressed)
        written = Written(order.stage_dir, config, dataset.fingerprint, stream.state)
        self.uploads = Uploads(order.stage_dir, config.store if world.first else None, self.records.write)
        self.saver = Saver(written, world, self.whole)
        self.pace = Pace(config.checkpointing.every_minutes, world)
        self.progress = self.state.load(order.resume)
        copies = self.engine.placed.copies
        world.check_equal({name: local(p) for name, p in parameters.items() if copies[name] == world.processes})

    def run(self) -> None:
        """Train from where the stage is to its last step, or until somebody asks to save and stop."""
        if not self.order.resume.own:
            self.evaluate("start")
        batches = (span.batch_sequences for span, _ in steps(self.config, self.progress))
        self.samples.follow(data.coming(batches, self.progress.cursor))
        for span, step in steps(self.config, self.progress):
            begin, scale = time.perf_counter(), self.updater.loss_scale
            if self.compressed:
                self.compressed.rescale(scale)
            result = self.engine.gradients(self.progress.cursor, span.batch_sequences, bool(self.order.stop), scale)
            self.saver.staged()
            with result.timed("optimizer"):
                rate = span.learning_rate * span.schedule.factor(step)
                update = self.updater.update(rate, span.batch_sequences, result.small)
            wall = time.perf_counter() - begin
            before, self.progress = self.progress, Progress(step, self.progress.cursor + span.batch_sequences)
            ages = self.uploads.ages() | self.saver.age()
            self.records.step(span, self.progress, result, update, wall, ages)
            self.updater.refuse_to_go_on(step, result.loss, update)
            self.after(before, result.stop)
            if result.stop:
                break
        self.saver.finish()
        self.uploads.finish()

    def whole(self, kind: str, **values: Any) -> None:
        """Record a checkpoint that became whole, in the saver's thread, and let it be stored."""
        self.records.write(kind, **values)
        self.uploads.tell(values["step"])

    def after(self, before: Progress, stop: bool) -> None:
        """Evaluate and save where that is due after a step."""
        purpose = due(self.config, self.progress.step)
        if purpose == "final":
            self.evaluate("end")
        elif purpose == "hand_over" or crosses(self.config, before, self.progress):
            self.evaluate("step")
        by_time = self.pace.due(self.progress.step)
        if purpose or by_time or stop:
            self.save(purpose or "periodic", saved=stop)

    def evaluate(self, at: str) -> None:
        """Record the loss on the fixed held-out set."""
        progress, sequences = self.progress, len(self.held_out)
        tokens = progress.cursor * self.config.sequence_length
        loss = self.engine.held_out_loss(self.held_out)
        self.records.write("held_out", step=progress.step, tokens=tokens, loss=loss, at=at, sequences=sequences)

    def save(self, purpose: Purpose, saved: bool) -> None:
        """Begin a checkpoint; its record is written when it is whole. ``saved`` says that somebody asked for it."""
        said = {"saved": True} if saved else {}
        must = saved or purpose != "periodic"
        self.saver.begin(self.state.gather(self.progress), self.progress, purpose, must=must, **said)


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

    def __init__(self, order: Order, world: World, compressed: CompressedSum | None) -> None:
        """Open the file and write the attempt's header."""
        self.config, self.compressed = order.config, compressed
        self.records = Records(order.stage_dir / METRICS, self.config.attempt) if world.first else None
        said = header(order.config, order.dataset, order.processes, order.resume.to_json())
        if compressed:
            said["compression"] = {"bits": compressed.codec.bits, "errors": compressed.begun}
        self.write("header", **said)

    def write(self, kind: str, **values: object) -> None:
        """Append one record."""
        if self.records:
            self.records.write(kind, values)

    def step(
        self, span: Span, progress: Progress, result: StepResult, update: Update, wall: float, ages: Mapping[str, float]
    ) -> None:
        """Append the record of a step just done; ``ages`` are those of the newest checkpoints, here and stored."""
        config, batch = self.config, span.batch_sequences
        place = {"step": progress.step, "tokens": progress.cursor * config.sequence_length, "phase": span.phase}
        times = step_record(config, progress.step, batch, result.seconds | {"wall": wall}, config.attempt)
        aged = dict(ages)
        if self.compressed:
            aged |= self.compressed.spent()
        self.write(
            "step", **place, batch=batch, loss=result.loss, **update.to_json(), **result.routing, **times, **aged
        )
