"""AdamW with decoupled decay (Loshchilov & Hutter 2019), and the global gradient norm (Pascanu et al. 2013).

Torch's own kernel behind a small class rather than ``torch.optim.AdamW``: constructing that one imports torch's
compiler, 1.2 s more at every start, and its state would have to be renamed from numbers to names for checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from training.config import Optimizer
from training.gradients import Placed, local
from training.processes import World


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: to matrices, but neither to norms (vectors) nor to the embedding."""
    return parameter.dim() > 1 and not name.startswith("embedding.")


class AdamW:
    """First and second moments of each parameter, by its name, and the update; all in float32."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: Optimizer) -> None:
        """Start with moments of zero; parameters, sharded or whole, are updated in place."""
        self.settings = settings
        self.parameters = dict(parameters)
        self.first = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.steps = {name: torch.zeros((), device=p.device) for name, p in self.parameters.items()}

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update all parameters by their ``grad``."""
        for decay in (True, False):
            names = [name for name, p in self.parameters.items() if decays(name, p) is decay]
            adamw(
                [local(self.parameters[name].detach()) for name in names],
                [local(_gradient(name, self.parameters[name])) for name in names],
                [local(self.first[name]) for name in names],
                [local(self.second[name]) for name in names],
                [],
                [self.steps[name] for name in names],
                fused=True,
                amsgrad=False,
                beta1=self.settings.betas[0],
                beta2=self.settings.betas[1],
                lr=learning_rate,
                weight_decay=self.settings.weight_decay if decay else 0.0,
                eps=self.settings.eps,
                maximize=False,
            )

    def state(self) -> dict[str, Tensor]:
        """Return the tensors a checkpoint must hold, under flat names; loading writes into them in place."""
        groups = {"first": self.first, "second": self.second, "steps": self.steps}
        return {f"{group}.{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


@torch.no_grad()
def clip(placed: Placed, world: World, limit: float) -> float:
    """Scale gradients so that their global L2 norm is at most ``limit``; return the norm before that.

    The norm is summed in float64, elements that several processes hold count once. A norm that is not finite is
    returned as it is and nothing is scaled.
    """
    gradients = {name: local(p.grad) for name, p in placed.parameters.items() if p.grad is not None}
    whole = all(placed.copies[name] == world.processes for name in placed.parameters)  # each process has all of them
    squares = [g.double().square().sum() / (1 if whole else placed.copies[name]) for name, g in gradients.items()]
    total = torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64, device=world.device)
    if not whole:
        world.sum(total)
    norm = float(total.sqrt())
    if limit < norm < float("inf"):
        torch._foreach_mul_(list(gradients.values()), limit / norm)
    return norm


def _gradient(name: str, parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        raise RuntimeError(f"parameter {name} has no gradient: the loss does not depend on it")
    return parameter.grad
