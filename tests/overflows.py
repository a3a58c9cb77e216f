"""Four forked gloo processes train in fp16, layout after layout, and now and then one of them alone overflows.

``python tests/overflows.py FILE`` writes as JSON, of each layout, what every process made of every step.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from training import data, engine
from training.config import Layout, LossScale, ModelShape, TrainConfig
from training.gradients import local
from training.processes import World, run
from training.update import Updater

PROCESSES = 4
STEPS = 7
RULE = LossScale(initial=1024.0, growth_steps=2)
PLANTED = {1: (1, math.inf), 4: (3, math.nan), 5: (0, -math.inf)}  # step: (the one process, what its gradient holds)
LAYOUTS = {
    "virtual ranks": (Layout(), "exact"),
    "ddp": (Layout(), "batched"),
    "pipeline 2 x shard 2": (Layout(pipeline=2, shard=2), "batched"),
    "tensor 2 x pipeline 2": (Layout(tensor=2, pipeline=2), "batched"),
}


def order(layout: Layout, reduction: Any, gpus: int) -> TrainConfig:
    """Orders for a model of 0.03 M parameters in fp16."""
    shape = ModelShape(layers=2, hidden=32, heads=4, ffn=64, vocabulary=256)
    settings: dict[str, Any] = {"layout": layout, "precision": "fp16", "loss_scale": RULE, "reduction": reduction}
    return TrainConfig("x", "r", "s", 1, gpus, 3, shape, 16, (), **settings)


def steps(config: TrainConfig, world: World) -> list[dict[str, Any]]:
    """What became of each step in this process; one that holds all weights overflows before gradients are summed."""
    text = torch.randint(0, 64, (5000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    made = engine.engine(config, data.Stream(text, 16, seed=5), world)
    parameters = list(made.placed.parameters.values())
    updater, found = Updater(made.placed, world, config), []
    for step in range(STEPS):
        rank, planted = PLANTED.get(step, (None, 0.0))
        here = rank == world.rank and world.processes > 1
        early = here and config.layout.plain
        hook = parameters[0].register_hook(lambda gradient, x=planted: gradient + x) if early else None
        result = made.gradients(8 * step, 8, False, updater.loss_scale)
        if hook:
            hook.remove()
        if here and not early:
            next(part for p in parameters if (part := local(p.grad)).numel()).view(-1)[0] = planted
        before = [local(p.detach()).clone() for p in parameters]
        update = updater.update(3e-3, 8, result.small)
        moved = any(not torch.equal(old, local(p.detach())) for old, p in zip(before, parameters, strict=True))
        said = {"loss": result.loss, "norm": update.grad_norm, "done": update.done, "scale": update.loss_scale}
        said |= {"moved": moved, "noise": update.gradient_noise_sequences}
        found.append(said | {"counts": updater.optimizer.counts.tolist()})
    return found


def main(file: Path) -> None:
    """Run all layouts in one world of four processes, and one process alone before them."""
    alone = steps(order(Layout(), "batched", 1), World())
    for layout, reduction in LAYOUTS.values():
        engine.prepare(order(layout, reduction, PROCESSES), PROCESSES)

    def each(world: World) -> None:
        found: dict[str, Any] = {"alone": [alone]}
        for name, (layout, reduction) in LAYOUTS.items():
            found[name] = [None] * PROCESSES
            dist.all_gather_object(found[name], steps(order(layout, reduction, PROCESSES), world))
        if world.first:
            file.write_text(json.dumps(found))

    run(each, PROCESSES)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
