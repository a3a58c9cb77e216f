"""How a model is cut onto the processes of a job, top to bottom: from a layout to an engine that computes gradients.

    stages of a pipeline -> matrices over tensor ranks -> activations kept or not -> states over shards -> first weights

Every layout computes what one process would: the same loss, gradient and order of samples.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.parallel import DistributedDataParallel

from training import tensor_parallel
from training.config import Layout, TrainConfig
from training.data import Samples
from training.gradients import Placed, Reduce, local
from training.mesh import Mesh
from training.model import GPT, initial, loss_sum
from training.passes import Passes, Whole
from training.pipeline import Pipeline, tied
from training.precision import autocast
from training.processes import World
from training.replicas import LastPass, ReplicaSum, sum_buckets
from training.sharded import Sharded, Share


def engine(config: TrainConfig, stream: Samples, world: World, reduce: Reduce) -> Sharded:
    """Build the model with its first weights, cut as ``config.layout`` says, which fits.

    ``reduce`` sums gradients between copies of the same weights.
    """
    layout = config.layout
    if layout.group * layout.shard == 1 and not layout.cpu_offload:
        return _copies(config, stream, world, reduce)
    mesh, last_pass = Mesh.of(world, layout), LastPass()
    stages = {
        number: _stage(config, mesh, world, number, blocks, reduce, last_pass)
        for number, blocks in held(config, mesh.place("pipeline")).items()
    }
    passes = _passes(config, mesh, world, stages, last_pass)
    share = Share(mesh.data_rank, mesh.data_ranks, mesh.first_tensor_rank, layout.micro_batch_sequences)
    return Sharded(passes, _placed(stages, mesh, world), stream, world, share, config.precision)


def held(config: TrainConfig, place: int) -> Mapping[int, range]:
    """Return the stages that the process at ``place`` of a pipeline holds, each with its blocks."""
    layout = config.layout
    stages = layout.pipeline * layout.stages_per_rank
    blocks = config.model.layers // stages
    return {number: range(number * blocks, (number + 1) * blocks) for number in range(place, stages, layout.pipeline)}


def _copies(config: TrainConfig, stream: Samples, world: World, reduce: Reduce) -> Sharded:
    """Return an engine whose processes each hold the whole model: data parallelism by DDP."""
    model = GPT(config.model, config.seed).to(world.device)
    model.recompute(config.layout.activation_checkpointing)
    parameters = model.named()
    placed = Placed(parameters, dict.fromkeys(parameters, world.processes))
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    sum_buckets(wrapped, reduce, wrapped.process_group)
    passes = Whole(wrapped, loss_sum, partial(autocast, config.precision, world.device), LastPass())
    share = Share(world.rank, world.processes, True, config.layout.micro_batch_sequences)
    return Sharded(passes, placed, stream, world, share, config.precision)


def _stage(
    config: TrainConfig, mesh: Mesh, world: World, number: int, blocks: range, reduce: Reduce, last_pass: LastPass
) -> GPT:
    """Return one stage, of which this process holds its part; nothing is allocated before it is cut."""
    with torch.device("meta"):
        model = GPT(config.model, config.seed, blocks)
    if mesh.size("tensor") > 1:
        # Logits are a view of a DTensor's part. Nothing here writes into them, which is what FSDP2 warns of.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        tensor_parallel.split(model, mesh.devices["tensor"], config.layout.sequence_parallel)
    model.recompute(config.layout.activation_checkpointing)
    _shard_states(model, mesh, config.layout)
    if mesh.size("replicate") > 1:
        for name, module in model.named_modules():
            if isinstance(module, FSDPModule):
                where = f"stage_{number}.{name}".rstrip(".")
                module.set_all_reduce_hook(ReplicaSum(reduce, mesh.group("replicate"), where, last_pass))
    _first_weights(model, config, torch.device("cpu") if config.layout.cpu_offload else world.device)
    return model


def _shard_states(model: GPT, mesh: Mesh, layout: Layout) -> None:
    """Give every process its shard of weights, gradients and moments; whole weights exist a block at a time.

    A pipeline passes many micro-batches through a stage before it is done with its weights, so they stay gathered.
    """
    offload = CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if layout.cpu_offload else OffloadPolicy()
    again = None if layout.pipeline == 1 and layout.shard > 1 else False  # None: all but the root, needed at once
    for module in (*model.blocks.values(), model):
        shards = mesh.devices["shard"]
        sharded: FSDPModule = fully_shard(module, mesh=shards, reshard_after_forward=again, offload_policy=offload)
        sharded.set_gradient_divide_factor(1.0)  # losses are sums: so are gradients
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has no sum that multiplies on the way


@torch.no_grad()
def _first_weights(model: GPT, config: TrainConfig, device: torch.device) -> None:
    """Allocate what this process holds and draw it: each parameter as in the whole model, one at a time."""
    model.to_empty(device=device)
    model.tie()
    for name, parameter in model.named().items():
        local(parameter.detach()).copy_(mine(initial(name, parameter.shape, config.model, config.seed), parameter))


def mine(whole: Tensor, like: Tensor) -> Tensor:
    """Return the part of ``whole`` that this process holds of a parameter placed as ``like`` is."""
    if not isinstance(like, DTensor):
        return whole
    size, offset = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    return whole[tuple(slice(at, at + many) for at, many in zip(offset, size, strict=True))]


def _passes(config: TrainConfig, mesh: Mesh, world: World, stages: Mapping[int, GPT], last_pass: LastPass) -> Passes:
    """Return what sends micro-batches through the stages: torch's pipeline schedules, or the one module itself."""
    loss, precision = loss_sum, partial(autocast, config.precision, world.device)
    ranks = mesh.size("tensor")
    if ranks > 1:
        loss = partial(tensor_parallel.split_loss_sum, group=mesh.group("tensor"))
    if mesh.size("pipeline") == 1:
        return Whole(stages[0], loss, precision, last_pass)
    length = config.sequence_length // (ranks if config.layout.sequence_parallel else 1)
    return Pipeline(stages, mesh, world.device, loss, precision, length)


def _placed(stages: Mapping[int, GPT], mesh: Mesh, world: World) -> Placed:
    """Return all parameters held here, and of each how many processes hold the same elements."""
    parameters: dict[str, nn.Parameter] = {}
    copies: dict[str, int] = {}
    twice = tied(stages)
    for model in stages.values():
        for name, parameter in model.named().items():
            parameters[name] = parameter
            shards = 1
            if isinstance(parameter, DTensor):
                axes = zip(parameter.device_mesh.shape, parameter.placements, strict=True)
                shards = math.prod(size for size, placement in axes if not placement.is_replicate())
            copies[name] = world.processes // mesh.size("pipeline") // shards * (2 if parameter is twice else 1)
    return Placed(parameters, copies)
