"""AdamW with decoupled decay (Loshchilov & Hutter 2019), and the global gradient norm (Pascanu et al. 2013).

Torch's own fused kernel behind a small class rather than ``torch.optim.AdamW``: constructing that one imports torch's
compiler, 1.2 s more at every start, its state would have to be renamed from numbers to names for checkpoints, and its
bias corrections are those of betas that never change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from training.config import Optimizer
from training.gradients import Placed, local
from training.processes import World


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: to matrices, but neither to norms and biases (vectors) nor to embeddings."""
    return parameter.dim() > 1 and "embedding" not in name


def one(name: str) -> float:
    """Be the rate factor of every parameter: all learn at the rate as given."""
    return 1.0


class AdamW:
    """First and second moments of each parameter, by its name, and the update; all in float32."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], settings: Optimizer, rate_factor: Callable[[str], float] = one
    ) -> None:
        """Start with moments of zero; parameters, sharded or whole, are updated in place.

        ``rate_factor`` of its name is what a parameter's learning rate is multiplied by. Its decay is not: a weight
        decays by the given rate x weight_decay at any width.
        """
        self.settings = settings
        self.parameters = dict(parameters)
        self.alike: dict[tuple[bool, float], list[str]] = {}  # names, by whether they decay and their rate's factor
        for name, parameter in self.parameters.items():
            self.alike.setdefault((decays(name, parameter), rate_factor(name)), []).append(name)
        self.first = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        # Updates done, and the steps of betas[1] that decay the second moment as far; equal while the batch is. Skipped
        # steps count in neither. Known here on the host, so that a step needs nothing from the device.
        self.counts = torch.zeros(2, dtype=torch.float64)

    @torch.no_grad()
    def step(self, learning_rate: float, batch: int, divisor: Tensor, skip: Tensor) -> None:
        """Update all parameters by their ``grad`` over ``divisor``, unless ``skip`` is 1; leave the counts.

        ``batch`` is the step's size in sequences. Both tensors are float32 without dimensions and stay on their device:
        the kernel reads them there, so neither unscaling nor clipping nor skipping costs a pass or a wait.
        """
        settings = self.settings
        done, elapsed = (self.counts + self._one(batch)).tolist()
        beta1, beta2 = settings.betas[0], settings.second_beta(batch)
        # The kernel corrects both moments for one number of steps. It gets the second's; the first's correction goes
        # into the learning rate, and out of the decay again. While the batch is what it was, the ratio is exactly 1.
        steps = elapsed / settings.reference_steps(batch)
        ratio = (1.0 - beta1**steps) / (1.0 - beta1**done)
        for (decay, factor), names in self.alike.items():
            parameters = [local(self.parameters[name].detach()) for name in names]
            device = parameters[0].device
            torch._fused_adamw_(
                parameters,
                [local(_gradient(name, self.parameters[name])) for name in names],
                [local(self.first[name]) for name in names],
                [local(self.second[name]) for name in names],
                [],
                [torch.full((), steps, device=device)] * len(names),
                lr=learning_rate * ratio * factor,
                beta1=beta1,
                beta2=beta2,
                weight_decay=settings.weight_decay / ratio / factor if decay else 0.0,
                eps=settings.eps,
                amsgrad=False,
                maximize=False,
                grad_scale=divisor.to(device),
                found_inf=skip.to(device),
            )

    def count(self, batch: int) -> None:
        """Say that the step just asked for moved the weights."""
        self.counts += self._one(batch)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors a checkpoint must hold, under flat names; loading writes into them in place."""
        groups = {"first": self.first, "second": self.second}
        moments = {f"{group}.{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
        return moments | {"counts": self.counts}

    def _one(self, batch: int) -> Tensor:
        return torch.tensor([1.0, self.settings.reference_steps(batch)], dtype=torch.float64)


@torch.no_grad()
def gradient_norm(placed: Placed, world: World) -> Tensor:
    """Return the global L2 norm of the gradients as they are: float64, without dimensions, on the world's device.

    Elements that several processes hold count once. A gradient that is not finite, in whichever process, makes the norm
    not finite in all of them, so no second collective is needed to agree on skipping a step.
    """
    gradients = {name: local(p.grad) for name, p in placed.parameters.items() if p.grad is not None}
    whole = all(placed.copies[name] == world.processes for name in placed.parameters)  # each process has all of them
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    if gradients:
        # In float64: summed in float32 on a CPU, the norm of 10 million elements is 4e-4 off, in each layout otherwise.
        norms = torch.stack(torch._foreach_norm(list(gradients.values()), 2, dtype=torch.float64))
        copies = [1 if whole else placed.copies[name] for name in gradients]
        weights = torch.tensor(copies, dtype=torch.float64).reciprocal()
        total = (norms.square() * weights.to(norms.device)).sum().to(world.device)
    if not whole:
        world.sum(total)
    return total.sqrt()


def _gradient(name: str, parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        raise RuntimeError(f"parameter {name} has no gradient: the loss does not depend on it")
    return parameter.grad
