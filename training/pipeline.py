"""Passes through a pipeline: torch's own schedules, one stage a process (1F1B) or several (interleaved 1F1B).

Narayanan et al. 2019 (PipeDream-Flush) for 1F1B, Narayanan et al. 2021 for the interleaved schedule. Shapes are known
beforehand, so stages exchange no metadata and a step with another number of micro-batches only gets buffers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from training.gradients import StepResult, local
from training.mesh import Mesh
from training.model import GPT
from training.moe import experts_of
from training.passes import LossSum


class TimedStage(PipelineStage):
    """A stage whose own passes are timed, so that what remains of a step is waiting for others."""

    precision: Callable[[], AbstractContextManager[object]]
    result: StepResult

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Compute one micro-batch forward."""
        with self.result.timed("forward"), self.precision():
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Compute one micro-batch backward."""
        with self.result.timed("backward"):
            return super().backward_one_chunk(*args, **kwargs)


class Pipeline:
    """Passes through the stages of a model, of which this process holds those in ``stages``, by their numbers."""

    def __init__(
        self,
        stages: Mapping[int, GPT],
        mesh: Mesh,
        device: torch.device,
        loss_sum: LossSum,
        precision: Callable[[], AbstractContextManager[object]],
        hidden_length: int,
    ) -> None:
        """Between stages go float32 [sequences, hidden_length, hidden]: a tensor rank's part of a sequence."""
        self.stages, self.mesh, self.device = stages, mesh, device
        self.loss_sum, self.precision = loss_sum, precision
        self.hidden_length = hidden_length
        self.processes = mesh.size("pipeline")
        self.multiple = self.processes  # the interleaved schedule goes round by round; 1F1B must fill the pipeline
        self.wanted = 4 * self.processes  # then (p - 1) of 5 p - 1 turns are idle
        self.experts = experts_of(stages.values())
        self._factor = 1.0
        self._schedules: dict[torch.Size, Schedule1F1B | ScheduleInterleaved1F1B] = {}
        self._timed: dict[torch.Size, list[TimedStage]] = {}

    def train(self, inputs: Tensor, targets: Tensor, factor: float, result: StepResult) -> Tensor:
        """See :meth:`training.passes.Passes.train`."""
        self._factor = factor
        losses: list[Tensor] = []
        for each in self.experts:
            each.loss_factor = factor
        with result.timed("communication"):
            self._schedule(inputs, result).step(*self._first(inputs), **self._last(targets, losses))
            self._join_tied()
        result.seconds["communication"] -= result.seconds["forward"] + result.seconds["backward"]
        return self._sum(losses, inputs) / factor

    @torch.no_grad()
    def evaluate(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """See :meth:`training.passes.Passes.evaluate`."""
        self._factor = 1.0
        losses: list[Tensor] = []
        for part, wanted in zip(torch.split(inputs, self.wanted), torch.split(targets, self.wanted), strict=True):
            found: list[Tensor] = []
            self._schedule(part, StepResult()).eval(*self._first(part), **self._last(wanted, found))
            losses += found
        return self._sum(losses, inputs)

    def _schedule(self, inputs: Tensor, result: StepResult) -> Schedule1F1B | ScheduleInterleaved1F1B:
        """Return the schedule for micro-batches of this number and size."""
        size = inputs.shape
        if size not in self._schedules:
            stages = self._timed[size] = [self._stage(number, model, size) for number, model in self.stages.items()]
            self._schedules[size] = (
                Schedule1F1B(stages[0], size[0], loss_fn=self._loss, scale_grads=False)
                if len(stages) == 1
                else ScheduleInterleaved1F1B([*stages], size[0], loss_fn=self._loss, scale_grads=False)
            )
        for stage in self._timed[size]:
            stage.result = result
        return self._schedules[size]

    def _stage(self, number: int, model: GPT, size: torch.Size) -> TimedStage:
        tokens = torch.empty(size[1:], dtype=torch.int64, device="meta")
        width = model.shape.hidden
        hidden = torch.empty(size[1], self.hidden_length, width, device="meta", requires_grad=True)
        stage = TimedStage(
            model,
            number,
            self.processes * len(self.stages),
            self.device,
            input_args=hidden if model.embedding is None else tokens,
            output_args=hidden,  # of the last stage nobody receives any
            group=self.mesh.group("pipeline"),
        )
        stage.precision = self.precision
        return stage

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self.loss_sum(logits, targets) * self._factor

    def _first(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return what goes in where the first stage is."""
        return (inputs.flatten(0, 1),) if 0 in self.stages else ()

    def _last(self, targets: Tensor, losses: list[Tensor]) -> dict[str, Any]:
        """Return what goes in where the last stage is."""
        head = any(model.head is not None for model in self.stages.values())
        said = {"target": targets.flatten(0, 1), "losses": losses} if head else {}
        return said | {"return_outputs": False}

    def _sum(self, losses: list[Tensor], like: Tensor) -> Tensor:
        zero = torch.zeros((), dtype=torch.float64, device=like.device)
        return torch.stack([loss.detach().double() for loss in losses]).sum() if losses else zero

    def _join_tied(self) -> None:
        """Add up the gradients of a weight that the first and the last stage both hold; both get the same bits."""
        weight = tied(self.stages)
        if weight is None:
            return
        group, place = self.mesh.group("pipeline"), self.mesh.place("pipeline")
        peer = dist.get_global_rank(group, self.processes - 1 - place)
        gradient = local(_gradient(weight))
        mine = gradient.to(self.device)  # from the host's memory, where it is offloaded
        theirs = torch.empty_like(mine)
        swap = [dist.P2POp(dist.isend, mine, peer, group), dist.P2POp(dist.irecv, theirs, peer, group)]
        for work in dist.batch_isend_irecv(swap):
            work.wait()
        gradient += theirs.to(gradient.device)


def tied(stages: Mapping[int, GPT]) -> nn.Parameter | None:
    """Return the parameter of these stages that another stage has a copy of, if there is one."""
    for model in stages.values():
        if model.shape.tied and (model.embedding is None) != (model.head is None):
            return model.named().get("embedding.weight")
    return None


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        raise RuntimeError("the embedding has no gradient: the loss does not depend on it")
    return parameter.grad
