"""Gradients of a step where every process is real: data ranks share its samples, in equal numbers of micro-batches.

Shares differ by one sample at most, collectives must be called equally often: sequences without targets fill up the
last micro-batches, and weigh nothing. Losses are sums over tokens times 1 / the step's token count, known beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from training.data import Samples, share
from training.emulate import sequences_a_pass
from training.gradients import Placed, StepResult, local
from training.model import NO_TARGET
from training.moe import collect
from training.passes import Passes
from training.processes import World


@dataclass(frozen=True)
class Share:
    """This process's part of a step's samples, and how it is cut into micro-batches."""

    data_rank: int
    data_ranks: int
    speaks: bool  # for the processes that compute the same losses
    micro_batch_sequences: int | None  # None: as many as the cache holds, and as keep a pipeline busy

    def cut(self, samples: int, length: int, passes: Passes) -> tuple[int, int]:
        """Return micro-batches, and sequences in each, for data ranks that take ``samples`` at most."""
        size = self.micro_batch_sequences
        if size is None:
            at_least = max(-(-samples // sequences_a_pass(length)), min(samples, passes.wanted))
            size = -(-samples // at_least)
        count = -(-samples // size)
        return -(-count // passes.multiple) * passes.multiple, size


@dataclass(frozen=True)
class Sharded:
    """An engine of real processes, whatever they hold of the model."""

    passes: Passes
    placed: Placed
    stream: Samples
    world: World
    share: Share
    precision: str

    def gradients(self, cursor: int, batch: int, stop: bool, scale: float = 1.0) -> StepResult:
        """See :meth:`training.gradients.Engine.gradients`."""
        result = StepResult()
        for parameter in self.placed.parameters.values():
            parameter.grad = None
        first, end = share(batch, self.share.data_rank, self.share.data_ranks)
        with result.timed("data"):
            samples = self.stream.samples(cursor + first, end - first)
            inputs, targets = self._micro_batches(samples, batch)
        tokens = batch * self.stream.sequence_length
        # In fp16 a loss scale is put on the mean of a pass, so that what overflows depends on no batch; else on the
        # step's, which spares a look at all gradients.
        mean_over = inputs[0].numel() if self.precision == "fp16" else tokens
        loss = self.passes.train(inputs, targets, scale / mean_over, result)
        if mean_over != tokens:
            gradients = [local(p.grad) for p in self.placed.parameters.values() if p.grad is not None]
            torch._foreach_mul_(gradients, mean_over / tokens)
        with result.timed("communication"):
            total, stops = self._sum(loss, float(stop))
            if self.passes.experts:
                result.routing = collect(self.passes.experts, self.world)
        result.loss, result.stop = total / tokens, stops > 0
        return result

    def held_out_loss(self, samples: Tensor) -> float:
        """See :meth:`training.gradients.Engine.held_out_loss`."""
        first, end = share(len(samples), self.share.data_rank, self.share.data_ranks)
        inputs, targets = self._micro_batches(samples[first:end], len(samples))
        total, _ = self._sum(self.passes.evaluate(inputs, targets), 0.0)
        return total / (len(samples) * (samples.shape[1] - 1))

    def _micro_batches(self, samples: Tensor, of: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets [micro-batches, sequences, length] of this rank's ``samples`` of ``of`` in all."""
        length = samples.shape[1] - 1
        most = -(-of // self.share.data_ranks)
        count, size = self.share.cut(most, length, self.passes)
        fill = (0, 0, 0, count * size - len(samples))
        inputs, targets = functional.pad(samples[:, :-1], fill), functional.pad(samples[:, 1:], fill, value=NO_TARGET)
        return (part.reshape(count, size, length).to(self.world.device) for part in (inputs, targets))  # type: ignore[return-value]

    def _sum(self, loss: Tensor, stop: float) -> tuple[float, float]:
        """Return loss and requests to stop, summed over all processes, each data rank's loss once."""
        mine = loss if self.share.speaks else torch.zeros_like(loss)
        sums = torch.stack((mine, torch.tensor(stop, dtype=torch.float64, device=self.world.device)))
        self.world.sum(sums)
        total, stops = sums.tolist()
        return total, stops
