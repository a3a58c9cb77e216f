"""Tensor and sequence parallelism: which matrix is cut along what, and where activations change hands.

Shoeybi et al. 2019 (Megatron-LM): the first matrices of a pair by columns, the second by rows, so that one exchange
ends each half of a block. Korthikanti et al. 2022: between the halves the sequence is cut instead (norms, residuals),
which turns each all-reduce into a reduce-scatter and an all-gather of the same bytes, and divides activations.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from training.model import GPT, NO_TARGET


def split(model: GPT, ranks: DeviceMesh, sequence_parallel: bool) -> None:
    """Cut the matrices of a model, or of a stage of it, over tensor ranks; parameters become DTensors.

    Between modules go plain tensors: [batch, sequence, hidden], with ``sequence_parallel`` a part of the sequence.
    Logits are [batch, sequence, a part of the vocabulary].
    """
    between = Shard(1) if sequence_parallel else Replicate()
    whole_input = PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate())
    block: dict[str, ParallelStyle] = {
        "attention": whole_input,  # gathered once for the three projections
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=between),
        "ffn": whole_input,
        "ffn.gate": ColwiseParallel(),
        "ffn.up": ColwiseParallel(),
        "ffn.down": RowwiseParallel(output_layouts=between),
    }
    ends: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1)),
    }
    if sequence_parallel:
        block |= {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
        ends |= {"norm": SequenceParallel()}
    if model.shape.mlp == "gelu":
        del block["ffn.gate"]
    for each in model.blocks.values():
        parallelize_module(each, ranks, block)
    parallelize_module(model, ranks, {name: style for name, style in ends.items() if getattr(model, name) is not None})
    model.tie()


def split_loss_sum(logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return what ``loss_sum`` gives, of logits whose vocabulary is cut over ``group``; no process gathers them."""
    loss: Tensor = _SplitLossSum.apply(logits.float().flatten(0, 1), targets.flatten(), group)  # type: ignore[no-untyped-call]
    return loss


class _SplitLossSum(torch.autograd.Function):
    """Cross-entropy, summed, of logits [tokens, part of the vocabulary]: three numbers a token change hands.

    Shoeybi et al. 2019, section 3. Torch's ``loss_parallel`` does the same within a context that must also hold around
    the backward pass, which a pipeline's schedule runs in its own time.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> Tensor:
        most = logits.amax(1)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
        part = (logits - most[:, None]).exp_()
        place = targets - dist.get_rank(group) * logits.shape[1]
        here = (place >= 0) & (place < logits.shape[1])
        place = place.where(here, 0)[:, None]
        chosen = logits.gather(1, place)[:, 0].where(here, 0.0)
        sums = torch.stack((part.sum(1), chosen))
        dist.all_reduce(sums, group=group)
        total, chosen = sums.unbind()
        counts = targets != NO_TARGET
        ctx.save_for_backward(part.div_(total[:, None]), place, here, counts)
        return (total.log() + most - chosen).where(counts, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        share, place, here, counts = ctx.saved_tensors
        gradient = share.scatter_add(1, place, -here[:, None].to(share.dtype))
        return gradient.mul_(counts[:, None] * slope), None, None
