"""How a model is cut onto the processes of a job, top to bottom: from a layout to an engine that computes gradients."""

from __future__ import annotations

from training.config import ConfigError, TrainConfig
from training.data import Stream
from training.emulate import VirtualRanks
from training.gradients import Engine
from training.model import GPT
from training.processes import World


def engine(config: TrainConfig, stream: Stream, world: World) -> Engine:
    """Build the model with its first weights, cut as ``config.layout`` says; raise ConfigError if it can't be."""
    if not config.layout.plain:
        raise ConfigError(f"layout: {config.layout} is more than data parallelism, which is all there is yet")
    model = GPT(config.model, config.seed).to(world.device)
    return VirtualRanks(model, stream, world, config.gpus, config.reduction, config.precision)
