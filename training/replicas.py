"""The sum of gradients between copies of the same weights, once a step: the one place where compression enters.

FSDP2 would sum over replicas by itself if it were given their axis. It is given the axis of shards alone, and the
replicas' sum is a hook of ours behind its reduce-scatter, on the stream that FSDP2 keeps for it, so that it overlaps
with the backward pass as before and may be any :class:`Reduce`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from training.gradients import Reduce, all_reduce


@dataclass
class LastPass:
    """Whether the micro-batch under way is the step's last, after which gradients are complete."""

    now: bool = True


class ReplicaSum:
    """Behind one module's reduce-scatter: gathers up the micro-batches' gradients and sums them over the replicas."""

    def __init__(self, reduce: Reduce, group: dist.ProcessGroup, name: str, last_pass: LastPass) -> None:
        """``name`` tells the module's gradients from those of others."""
        self.reduce, self.group, self.name, self.last_pass = reduce, group, name, last_pass
        self._earlier: Tensor | None = None

    def __call__(self, gradients: Tensor) -> None:
        """Make the flat ``gradients`` of one micro-batch what FSDP2 shall add to ``grad``."""
        if not self.last_pass.now:
            self._earlier = gradients.clone() if self._earlier is None else self._earlier.add_(gradients)
            gradients.zero_()
            return
        if self._earlier is not None:
            gradients += self._earlier
            self._earlier = None
        self.reduce(gradients, self.group, self.name)


def sum_buckets(model: DistributedDataParallel, reduce: Reduce, group: dist.ProcessGroup) -> None:
    """Have DDP sum its buckets by ``reduce``; left alone it would average them.

    After its first backward pass DDP forms its buckets anew, in the order in which gradients came. That pass is done
    here, with gradients of zero that nobody reduces: so a bucket always holds the same elements, in the first step of a
    job that was resumed as well.
    """
    forming = True

    def plain(state: object, bucket: GradBucket) -> Future[Tensor]:
        done = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
        summed: Future[Tensor] = done.then(lambda future: future.value()[0])
        return summed

    def custom(state: object, bucket: GradBucket) -> Future[Tensor]:
        if not forming:
            reduce(bucket.buffer(), group, f"bucket_{bucket.index()}")
        done: Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    hook = plain if reduce is all_reduce else custom
    hook.__annotations__ = {}  # DDP compares them with its types, and would not know these strings for them
    model.register_comm_hook(None, hook)
    token = torch.zeros(1, 1, dtype=torch.int64, device=next(model.parameters()).device)
    (model(token).sum() * 0.0).backward()
    forming = False
