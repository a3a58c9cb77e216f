"""Eight forked gloo processes train a tiny model in one layout after the other, beside one process that does it alone.

``python tests/layouts.py FILE [STEPS]`` writes what came of each as JSON. One world serves all layouts, since starting
one costs more than most of them take. Without STEPS only the two cheap layouts train for 50, since DTensor's
bookkeeping takes eight processes on two cores 0.3 s a step; with 50 steps all of them do, which `make bench` asks for.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from trained import tensors

from training import data, engine, parallel
from training.checkpoint import weights
from training.config import Layout, ModelShape, Optimizer, TrainConfig
from training.gradients import Engine, local
from training.processes import World, run
from training.update import Updater

PROCESSES = 8
BATCHES = (5, 8, 12)  # in turn: fewer than there are data ranks, as many, and more
LENGTH = 16
LONG, MIDDLE, SHORT = 50, 10, 4  # steps
THREE = Layout(tensor=2, pipeline=2, shard=2, micro_batch_sequences=3)
CURVES = {
    "ddp": (Layout(micro_batch_sequences=1), LONG),
    "fsdp": (Layout(shard=8), SHORT),
    "hsdp 2 x 4": (Layout(shard=4, micro_batch_sequences=1), SHORT),
    "tensor 2": (Layout(tensor=2), SHORT),
    "tensor 4": (Layout(tensor=4), SHORT),
    "tensor 8": (Layout(tensor=8), SHORT),
    "tensor 8, whole sequences": (Layout(tensor=8, sequence_parallel=False), SHORT),
    "pipeline 2": (Layout(pipeline=2, micro_batch_sequences=1), MIDDLE),
    "pipeline 2, interleaved": (Layout(pipeline=2, stages_per_rank=2, micro_batch_sequences=1), SHORT),
    "2 x 2 x 2": (THREE, MIDDLE),
    "2 x 2 x 2, recomputed": (dataclasses.replace(THREE, activation_checkpointing=True), SHORT),
    "fsdp, offloaded": (Layout(shard=8, cpu_offload=True), SHORT),
    "hsdp 2 x 4, experts": (Layout(shard=4, micro_batch_sequences=1), SHORT),
    "pipeline 2, experts": (Layout(pipeline=2, micro_batch_sequences=1), SHORT),
    "2 x 2 x 2, others of the family": (THREE, SHORT),
}
SHAPES = {
    "hsdp 2 x 4, experts": {"experts": 4},
    "pipeline 2, experts": {"experts": 4},
    "2 x 2 x 2, others of the family": {"kv_heads": 2, "tied": False, "mlp": "gelu", "base_hidden": 16},
}
HALVES = ("ddp", "2 x 2 x 2")
PLACES = {
    "fsdp": Layout(shard=8),
    "tensor 8": Layout(tensor=8),
    "tensor 4 x pipeline 2": Layout(tensor=4, pipeline=2, micro_batch_sequences=12),
    "2 x 2 x 2, interleaved": Layout(tensor=2, pipeline=2, shard=2, stages_per_rank=2, micro_batch_sequences=6),
}


def order(
    layout: Layout, layers: int = 2, precision: str = "float32", gpus: int = PROCESSES, **shaped: Any
) -> TrainConfig:
    """Orders for a model of about 0.03 M parameters."""
    shape = ModelShape(layers=layers, hidden=32, heads=8, ffn=64, vocabulary=256, **shaped)
    settings: dict[str, Any] = {"layout": layout, "precision": precision, "optimizer": Optimizer(clip=0.5)}
    return TrainConfig("x", "r", "gpus_8", 1, gpus, 3, shape, LENGTH, (), **settings)


def alone(config: TrainConfig) -> TrainConfig:
    """The same orders for one process that holds the whole model."""
    return dataclasses.replace(config, layout=Layout(), gpus=1)


def order_of(name: str) -> TrainConfig:
    """Orders for one of CURVES, with as few layers as the stages of its layout allow."""
    layout = CURVES[name][0]
    return order(layout, 2 * layout.stages_per_rank, **SHAPES.get(name, {}))


class Trained:
    """An engine and its optimizer, some steps into a stream of their own."""

    def __init__(self, config: TrainConfig, world: World) -> None:
        text = torch.randint(0, 64, (5000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
        self.held_out = data.cut(text, torch.arange(23), LENGTH)
        self.engine: Engine = engine.engine(config, data.Stream(text, LENGTH, seed=5), world)
        self.updater = Updater(self.engine.placed, world, config)
        self.cursor = self.done = 0

    def gradient(self) -> float:
        """Compute the next step's gradient; return its loss."""
        return self.engine.gradients(self.cursor, self._batch, False, self.updater.loss_scale).loss

    def steps(self, count: int) -> Iterator[tuple[float, float]]:
        """Train; yield each step's loss and gradient norm."""
        for _ in range(count):
            loss = self.gradient()
            yield loss, self.updater.update(3e-3, self._batch).grad_norm
            self.cursor, self.done = self.cursor + self._batch, self.done + 1

    def held_out_loss(self) -> float:
        return self.engine.held_out_loss(self.held_out)

    def state(self) -> dict[str, torch.Tensor]:
        return weights(self.engine.placed.parameters) | self.updater.state()

    @property
    def _batch(self) -> int:
        return BATCHES[self.done % len(BATCHES)]


def curve(trained: Trained, count: int) -> dict[str, Any]:
    """Loss and gradient norm of each step, and the held-out loss before and after."""
    begin = trained.held_out_loss()
    losses, norms = zip(*trained.steps(count), strict=True)
    return {"loss": losses, "norm": norms, "held_out": [begin, trained.held_out_loss()]}


def gradient_error(cut: Trained, whole: Trained) -> float:
    """The largest difference of a parameter's first gradient from one process's, as a part of that."""
    cut.gradient()
    whole.gradient()
    worst = torch.zeros(())
    for name, parameter in cut.engine.placed.parameters.items():
        wanted, got = whole.engine.placed.parameters[name].grad, parameter.grad
        if wanted is None or got is None:
            raise RuntimeError(f"{name} has no gradient")
        difference = local(got) - parallel.mine(wanted, parameter)
        worst = torch.maximum(worst, difference.norm() / wanted.norm())
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return float(worst)


def resharded(world: World, folder: Path) -> dict[str, Any]:
    """Save in each layout and open in every other: the tensors that differ, and both held-out losses."""
    jobs = {name: Trained(order(layout, layers=4), world) for name, layout in PLACES.items()}
    found: dict[str, Any] = {}
    for source, job in jobs.items():
        list(job.steps(1))
        save(job.state(), checkpoint_id=folder / source)
        before = job.held_out_loss()
        whole = tensors(folder / source)
        for target, other in jobs.items():
            if target == source:
                continue
            state = other.state()
            load(state, checkpoint_id=folder / source)
            unequal = [k for k, t in state.items() if not torch.equal(local(t), parallel.mine(whole[k], t))]
            found[f"{source} -> {target}"] = {"held_out": [before, other.held_out_loss()], "unequal": unequal}
    return found


def main(file: Path, steps: int | None) -> None:
    """Compute what one process gives, then fork eight and have them do all the rest."""
    torch.set_num_threads(1)
    orders = {name: order_of(name) for name in CURVES}
    wanted = {(config.model, config.precision): alone(config) for config in orders.values()}
    longest = {key: SHORT for key in wanted}
    for name, config in orders.items():
        key = config.model, config.precision
        longest[key] = max(longest[key], CURVES[name][1])
    half = order(Layout(), 2, "bf16")
    wanted[half.model, "bf16"], longest[half.model, "bf16"] = alone(half), SHORT
    whole = {key: curve(Trained(config, World()), steps or longest[key]) for key, config in wanted.items()}

    def each(world: World) -> None:
        found: dict[str, Any] = {"curves": {}, "bf16": {}}
        for name, config in orders.items():
            trained = Trained(config, world)
            error = gradient_error(trained, Trained(alone(config), World()))
            cut = curve(trained, steps or CURVES[name][1])
            one = whole[config.model, config.precision]
            found["curves"][name] = {"alone": one, "cut": cut, "gradient_error": error}
        for name in HALVES:
            config = order(CURVES[name][0], precision="bf16")
            cut = curve(Trained(config, world), steps or SHORT)
            found["bf16"][name] = {"alone": whole[config.model, "bf16"], "cut": cut}
        found["reshard"] = resharded(world, file.parent)
        if world.first:
            file.write_text(json.dumps(found))

    run(each, PROCESSES)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
