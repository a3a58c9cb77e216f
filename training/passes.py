"""Forward and backward passes of micro-batches through a model, whole on its process or cut over others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from training.gradients import StepResult
from training.moe import Experts, experts_of
from training.replicas import LastPass

LossSum = Callable[[Tensor, Tensor], Tensor]  # of logits [batch, sequence, vocabulary] and targets, see model.loss_sum


class Passes(Protocol):
    """Computes micro-batches: ``inputs`` and ``targets`` are int64 [micro-batches, sequences, length].

    All processes of a job call it together, each data rank with samples of its own and as many micro-batches.
    """

    multiple: int  # micro-batches come in multiples of this
    wanted: int  # micro-batches that keep every process busy, where the samples suffice
    experts: list[Experts]  # mixtures held here

    def train(self, inputs: Tensor, targets: Tensor, factor: float, result: StepResult) -> Tensor:
        """Leave in ``grad`` the gradient of factor x the loss's sum over all data ranks; return the sum over this one.

        Zero in a process that has no head. Seconds are added to ``result``.
        """

    def evaluate(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of losses of this data rank, zero in a process that has no head."""


class Whole:
    """Passes through a model that no pipeline cuts: its processes see the same micro-batch together."""

    multiple = 1
    wanted = 1

    def __init__(
        self,
        model: nn.Module,
        loss_sum: LossSum,
        precision: Callable[[], AbstractContextManager[object]],
        last_pass: LastPass,
    ) -> None:
        """``model`` is a GPT, as it is or sharded by FSDP2 or wrapped by DDP; ``precision`` that of its forward."""
        self.model, self.loss_sum, self.precision, self.last_pass = model, loss_sum, precision, last_pass
        self.experts = experts_of([model])

    def train(self, inputs: Tensor, targets: Tensor, factor: float, result: StepResult) -> Tensor:
        """See :meth:`Passes.train`. FSDP scatters gradients after every micro-batch: so they never lie here whole."""
        for each in self.experts:
            each.loss_factor = factor
        total = torch.zeros((), dtype=torch.float64, device=inputs.device)
        for number, (tokens, wanted) in enumerate(zip(inputs, targets, strict=True), start=1):
            self.last_pass.now = number == len(inputs)
            if isinstance(self.model, FSDPModule):
                self.model.set_is_last_backward(self.last_pass.now)
            with self._alone():
                with result.timed("forward"):
                    with self.precision():
                        logits = self.model(tokens)
                    loss = self.loss_sum(logits, wanted)
                with result.timed("backward"):
                    (loss * factor).backward()  # type: ignore[no-untyped-call]
            total += loss.detach().double()
        return total

    @torch.no_grad()
    def evaluate(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """See :meth:`Passes.evaluate`."""
        total = torch.zeros((), dtype=torch.float64, device=inputs.device)
        for tokens, wanted in zip(inputs, targets, strict=True):
            with self.precision():
                logits = self.model(tokens)
            total += self.loss_sum(logits, wanted).double()
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # no backward pass follows that would let go of them, and they change
        return total

    def _alone(self) -> AbstractContextManager[object]:
        """Keep DDP from summing gradients before the last micro-batch."""
        if isinstance(self.model, DistributedDataParallel) and not self.last_pass.now:
            waiting: AbstractContextManager[object] = self.model.no_sync()
            return waiting
        return nullcontext()
