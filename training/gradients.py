"""What every way of computing a step's gradients promises, however the model is cut onto processes.

A loss is a sum over tokens, divided by the step's *global* token count, so that unequal shares weigh what they should
and no layout changes what a gradient means.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class SmallBatch:
    """How long gradients of parts of a step are, where an engine has them before it adds them up."""

    square: Tensor  # mean over the parts of the squared norm of a part's mean gradient, with the scale that they carry
    sequences: float  # in a part; where parts are unequal their harmonic mean, since noise goes with 1 / sequences


@dataclass
class StepResult:
    """What a step's samples said: mean loss a token, and where this process's time went."""

    loss: float = 0.0
    stop: bool = False  # some process was asked to save and stop; every process reads the same answer
    small: SmallBatch | None = None  # None where an engine has no gradient of less than the whole step
    seconds: dict[str, float] = field(default_factory=dict)
    routing: dict[str, float] = field(default_factory=dict)  # of a mixture of experts, as training.moe.collect says it

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the seconds of a block to a phase."""
        begin = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - begin


@dataclass(frozen=True)
class Placed:
    """A model on its processes: the parts that this process holds, and how many processes hold the same elements."""

    parameters: Mapping[str, nn.Parameter]  # by their names in the whole model; sharded ones are DTensors
    copies: Mapping[str, int]  # processes of the job that hold the very elements that this one holds


class Reduce(Protocol):
    """Sums gradients over processes that hold the same elements: the seam at which compression enters."""

    def __call__(self, tensor: Tensor, group: dist.ProcessGroup, name: str) -> None:
        """Replace the flat float32 ``tensor`` by its sum over ``group``; all its processes call it together.

        Under one ``name`` come the same elements in the same order, once a step.
        """


def all_reduce(tensor: Tensor, group: dist.ProcessGroup, name: str) -> None:
    """Be the plain :class:`Reduce`: the sum as the backend computes it."""
    dist.all_reduce(tensor, group=group)


class Engine(Protocol):
    """Computes gradients and losses of one model on the processes of a job; all processes call it together."""

    @property
    def placed(self) -> Placed:
        """The model's parameters as this process holds them."""

    def gradients(self, cursor: int, batch: int, stop: bool, scale: float = 1.0) -> StepResult:
        """Leave in every parameter's ``grad`` that of the mean loss of samples [cursor, cursor + batch), times scale.

        Overflow in fp16 depends on what is computed at once, so a scale means the same everywhere only if it is put on
        the *mean* loss of a pass, not on the sum over its tokens. A gradient that is not finite stays not finite.
        ``stop`` says that this process was asked to stop; the result says whether any was. The loss is unscaled.
        """

    def held_out_loss(self, samples: Tensor) -> float:
        """Return the mean loss a token over ``samples`` [sequences, length + 1], the same in every process."""


def local(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor that lie in this process; they share memory with it."""
    part = getattr(tensor, "_local_tensor", None)  # DTensor.to_local, without importing DTensor where there is none
    return tensor if part is None else part
