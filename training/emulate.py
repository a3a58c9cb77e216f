"""P processes carry W ranks: the gradient, loss and data order are those of W real data-parallel ranks.

Rank ``r`` takes its share of the step's samples, floor or ceil of B / W of them; process ``p`` carries a run of
neighbouring ranks. Losses are summed over tokens, gradients are those of that sum, and both are divided by the
*global* token count after the one reduction, so unequal shares weigh what they should. With P = W this is plain data
parallelism: there is no second code path that a rehearsal could differ from.

``exact``    each rank's samples alone, gradients added and reduced in float64: float32 gradients of 24 bits add up in
             53 without rounding that the way back to float32 would show, so the sum does not depend on who adds.
``batched``  the samples of neighbouring ranks share forward passes: many times faster, equal to about 1e-7.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from training.data import Samples, share
from training.gradients import Placed, SmallBatch, StepResult
from training.model import GPT
from training.moe import collect, experts_of
from training.precision import autocast
from training.processes import World

TOKENS_A_PASS = 4096  # of one forward pass: activations of more leave the processor's cache, and it gets slower


@dataclass(frozen=True)
class VirtualRanks:
    """Computes gradients of a step for ``ranks`` data-parallel ranks on the processes of ``world``."""

    model: GPT
    stream: Samples
    world: World
    ranks: int
    reduction: Literal["batched", "exact"]
    precision: str

    @property
    def placed(self) -> Placed:
        """Every process holds the whole model."""
        parameters = dict(self.model.named_parameters())
        return Placed(parameters, dict.fromkeys(parameters, self.world.processes))

    def gradients(self, cursor: int, batch: int, stop: bool, scale: float = 1.0) -> StepResult:
        """Leave in every parameter's ``grad`` the gradient of the mean loss of samples [cursor, cursor + batch)."""
        result = StepResult()
        parameters = list(self.model.parameters())
        mixtures = experts_of([self.model])
        for each in mixtures:
            each.loss_factor = scale / TOKENS_A_PASS
        sums = self._room(parameters)
        said = torch.zeros(3, dtype=torch.float64, device=self.world.device)  # loss, requests to stop, squared norms
        for first, end in self.groups(batch):
            if self.reduction == "exact":
                self.model.zero_grad(set_to_none=True)
            said[0] += self._backward(cursor + first, end - first, result, scale)
            if self.reduction == "exact":
                with result.timed("backward"):
                    sums += torch.cat([_gradient(p).flatten() for p in parameters])
        said[1] = float(stop)
        own, small = self._own_part(batch)
        if small and own:  # beside the sums, so that the noise of a gradient costs no collective of its own
            length = torch.linalg.vector_norm(sums, dtype=torch.float64)
            said[2] = (length / (own * self.stream.sequence_length / TOKENS_A_PASS)) ** 2
        with result.timed("communication"):
            self.world.sum(sums)
            self.world.sum(said)
            if mixtures:
                result.routing = collect(mixtures, self.world)
        with result.timed("optimizer"):
            sums /= batch * self.stream.sequence_length / TOKENS_A_PASS
            if self.reduction == "exact":
                _attach(parameters, sums.float())
        result.loss, result.stop = float(said[0]) / (batch * self.stream.sequence_length), bool(said[1] > 0)
        if small:
            result.small = SmallBatch(said[2] / small[1], small[0])
        return result

    def groups(self, batch: int) -> list[tuple[int, int]]:
        """Return the parts [first, end) of a step that this process computes in turn: its ranks', or all at once."""
        first, end = share(self.ranks, self.world.rank, self.world.processes)
        shares = [share(batch, rank, self.ranks) for rank in range(first, end)]
        if self.reduction == "batched" and shares:
            shares = [(shares[0][0], shares[-1][1])]
        return [(first, end) for first, end in shares if end > first]

    def _room(self, parameters: list[nn.Parameter]) -> Tensor:
        """Return zeros where gradients are added up: each parameter's one after the other.

        Batched they are the parameters' own ``grad``, into which backward passes add, so that nothing is copied: with
        the sums in float64 a step of 10 M parameters spent 60 ms more in one process, and sent twice the bytes in two.
        """
        if self.reduction == "exact":
            elements = sum(p.numel() for p in parameters)
            return torch.zeros(elements, dtype=torch.float64, device=self.world.device)
        _attach(parameters, self._gradients.zero_())
        return self._gradients

    @cached_property
    def _gradients(self) -> Tensor:
        """Kept from step to step: a fresh one costs 10,000 page faults at 10 M parameters."""
        return torch.empty(sum(p.numel() for p in self.model.parameters()), device=self.world.device)

    def _own_part(self, batch: int) -> tuple[int, tuple[float, int] | None]:
        """Return this process's sequences of a step; and of all processes' shares the harmonic mean and the number.

        Without a second process there is no gradient of less than the step, and no answer.
        """
        runs = [share(self.ranks, process, self.world.processes) for process in range(self.world.processes)]
        parts = [end * batch // self.ranks - first * batch // self.ranks for first, end in runs]
        filled = [part for part in parts if part]
        harmonic = len(filled) / sum(1 / part for part in filled)
        return parts[self.world.rank], ((harmonic, len(filled)) if len(filled) > 1 else None)

    def held_out_loss(self, samples: Tensor) -> float:
        """Return the mean loss a token over ``samples`` [sequences, length + 1], the work shared by all processes."""
        return held_out_loss(self.model, samples, self.world, self.precision)

    def _backward(self, first: int, count: int, result: StepResult, scale: float) -> float:
        """Add the gradient of the summed loss of some samples, times ``scale``; return that loss."""
        with result.timed("data"):
            samples = self.stream.samples(first, count).to(self.world.device)
        total = 0.0
        for part in torch.split(samples, sequences_a_pass(self.stream.sequence_length)):
            with result.timed("forward"), autocast(self.precision, self.world.device):
                loss = self.model.loss_sum(part)
            with result.timed("backward"):
                # By a power of two near the tokens of a pass, so about its mean loss: fp16 holds no gradient of a sum.
                (loss * (scale / TOKENS_A_PASS)).backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total


@torch.no_grad()
def held_out_loss(model: GPT, samples: Tensor, world: World, precision: str) -> float:
    """Return the mean loss a token over the held-out ``samples``, the work shared by all processes."""
    first, end = share(len(samples), world.rank, world.processes)
    total = torch.zeros(1, dtype=torch.float64, device=world.device)
    for part in torch.split(samples[first:end], sequences_a_pass(samples.shape[1] - 1)):
        with autocast(precision, world.device):
            total += model.loss_sum(part.to(world.device)).double()
    world.sum(total)
    return float(total) / (len(samples) * (samples.shape[1] - 1))


def sequences_a_pass(sequence_length: int) -> int:
    """Return how many sequences go through the model together."""
    return max(1, TOKENS_A_PASS // sequence_length)


def _attach(parameters: list[nn.Parameter], gradients: Tensor) -> None:
    """Make the parts of flat float32 ``gradients`` those of ``parameters``."""
    for parameter, part in zip(parameters, torch.split(gradients, [p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        raise RuntimeError("a parameter has no gradient: the loss does not depend on it")
    return parameter.grad
