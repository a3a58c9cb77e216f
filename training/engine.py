"""Which engine computes a job's gradients: virtual ranks, or real processes in the layout that the order says.

The layouts' own modules cost 3 s of imports; a job that needs none of them does not wait for them, and one that does
imports them once, before its processes are forked.
"""

from __future__ import annotations

from training.config import ConfigError, TrainConfig
from training.data import Samples
from training.emulate import VirtualRanks
from training.gradients import Engine, Reduce, all_reduce
from training.model import GPT
from training.processes import World


def engine(config: TrainConfig, stream: Samples, world: World, reduce: Reduce = all_reduce) -> Engine:
    """Build the model with its first weights, on all processes together.

    ``reduce`` sums gradients between real copies of the same weights. Virtual ranks sum theirs in float64.
    """
    if is_virtual(config, world.processes):
        model = GPT(config.model, config.seed).to(world.device)
        model.recompute(config.layout.activation_checkpointing)
        return VirtualRanks(model, stream, world, config.gpus, config.reduction, config.precision)
    from training import parallel

    return parallel.engine(config, stream, world, reduce)


def prepare(config: TrainConfig, processes: int) -> None:
    """Import what the engine will need, before processes are forked; raise ConfigError where a layout does not fit."""
    for misfit in config.layout.misfits(config.model, config.sequence_length, processes):
        raise ConfigError(f"layout: {misfit}")
    if config.compression is not None:
        copies = processes // (config.layout.group * config.layout.shard)
        if needless := config.compression.needless(copies, is_virtual(config, processes)):
            raise ConfigError(f"compression: {needless}")
    if not is_virtual(config, processes):
        from training import parallel  # noqa: F401


def is_virtual(config: TrainConfig, processes: int) -> bool:
    """Whether each process holds the whole model and computes for ranks that need not be real.

    Where GPUs are not emulated each rank is real: that is plain data parallelism, bit for bit equal to its emulation.
    """
    layout = config.layout
    alone = layout.group * layout.shard == 1 and not layout.cpu_offload
    return alone and (config.emulation is not None or config.reduction == "exact" or processes == 1)
