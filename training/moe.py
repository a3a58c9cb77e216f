"""A mixture of experts: each token goes to the few MLPs that its router likes best, each of which has so many places.

Token-choice top-k routing (Shazeer et al. 2017) with a capacity (Lepikhin et al. 2020, GShard) and the balance loss of
Fedus et al. 2021 (Switch, eq. 4-6). Places, drops and balance are counted in each sequence by itself, not in a batch:
so a token's fate depends on its sequence alone, and the loss on no layout, micro-batch or virtual rank.

Shapes are known beforehand (places are filled up with zeros), so nothing here waits for a device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.config import ModelShape
from training.processes import World


class Experts(nn.Module):
    """All experts of a layer; the matrices of each are one slice of three tensors, [experts, in, out]."""

    def __init__(self, shape: ModelShape) -> None:
        """Make the router and the experts."""
        super().__init__()
        self.shape = shape
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.gate = self._matrix(shape.hidden, shape.ffn) if shape.mlp == "swiglu" else None
        self.up = self._matrix(shape.hidden, shape.ffn)
        self.down = self._matrix(shape.ffn, shape.hidden)
        self.loss_factor = 1.0  # that gradients of the summed loss carry; whoever runs a backward pass sets it
        # Balance loss x tokens, dropped choices, tokens, since collected. Not where parameters are made:
        # sharded layouts make them on "meta", where nothing can be counted.
        self.seen = torch.zeros(3, dtype=torch.float64, device="cpu")

    def _matrix(self, inside: int, outside: int) -> nn.Parameter:
        return nn.Parameter(torch.empty(self.shape.experts, inside, outside))

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, sequence, hidden]; what was dropped everywhere is zero: the residual stream passes it by."""
        batch, length, hidden = x.shape
        places = self.shape.expert_places(length)
        weights, slots, balance, dropped = self.route(x, places)
        source = torch.full((batch, self.shape.experts * places + 1), length, device=x.device)
        token = torch.arange(length, device=x.device).repeat(self.shape.experts_per_token).expand(batch, -1)
        source = source.scatter(1, slots, token)[:, :-1]  # the place beyond the last takes what is dropped
        taken = functional.pad(x, (0, 0, 0, 1)).gather(1, source[..., None].expand(-1, -1, hidden))
        given = self._compute(taken.view(batch, self.shape.experts, places, hidden)).flatten(1, 2)
        chosen = functional.pad(given, (0, 0, 0, 1)).gather(1, slots[..., None].expand(-1, -1, hidden))
        mixed = (chosen * weights[..., None].to(chosen.dtype)).view(batch, -1, length, hidden).sum(1)
        out: Tensor = _Balanced.apply(mixed, balance, dropped, self)  # type: ignore[no-untyped-call]
        return out

    def route(self, x: Tensor, places: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return of each choice its weight and its place, [batch, choices x sequence], first choices before second.

        The place is experts x places where it was dropped: first choices go before second ones, earlier tokens before
        later. Then of each sequence, [batch]: the balance loss, which is 1 where shares are equal, and how many choices
        were dropped.
        """
        experts, choices = self.shape.experts, self.shape.experts_per_token
        with torch.autocast(x.device.type, enabled=False):  # half a precision would change who is chosen
            liked = functional.linear(x.float(), self.router.weight.float()).softmax(-1)
        weights, chosen = liked.topk(choices, dim=-1)
        if choices > 1:  # a single weight of 1 would teach the router nothing
            weights = weights / weights.sum(-1, keepdim=True)
        chosen, weights = (each.transpose(1, 2).flatten(1) for each in (chosen, weights))
        queue = functional.one_hot(chosen, experts)
        place = (queue.cumsum(1) - 1).gather(2, chosen[..., None])[..., 0]
        fits = place < places
        slots = (chosen * places + place).where(fits, experts * places)
        share = queue.float().mean(1)  # of all choices; no gradient
        balance = experts * (share * liked.mean(1)).sum(-1)
        return weights, slots, balance, (~fits).sum(1)

    def _compute(self, taken: Tensor) -> Tensor:
        """Return what experts make of [batch, experts, places, hidden], of the same shape."""
        batch, experts, places, hidden = taken.shape
        inputs = taken.transpose(0, 1).reshape(experts, batch * places, hidden)
        up = torch.bmm(inputs, self.up)
        inner = functional.gelu(up) if self.gate is None else functional.silu(torch.bmm(inputs, self.gate)) * up
        return torch.bmm(inner, self.down).view(experts, batch, places, hidden).transpose(0, 1)


class _Balanced(torch.autograd.Function):
    """Adds the gradient of the balance loss where it arises, so no part of a pipeline must hand that loss on.

    It is added in the backward pass, which computes each sequence once, also where activations are recomputed. A
    sequence that only fills up a micro-batch has no targets, so its gradient is zero everywhere: it counts for nothing.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, balance: Tensor, dropped: Tensor, experts: Experts) -> Tensor:
        ctx.experts, ctx.length = experts, x.shape[1]
        ctx.save_for_backward(balance, dropped)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None, None]:
        balance, dropped = ctx.saved_tensors
        counts = slope.flatten(1).ne(0).any(1).to(balance.dtype)
        tokens = counts * ctx.length
        experts: Experts = ctx.experts
        found = torch.stack(((balance * tokens).sum(), (dropped * counts).sum(), tokens.sum()))
        experts.seen = experts.seen.to(found.device) + found.double()
        return slope, tokens * (experts.shape.balance_factor * experts.loss_factor), None, None


def experts_of(models: Iterable[nn.Module]) -> list[Experts]:
    """Return the mixtures in models, none where they are dense."""
    return [module for model in models for module in model.modules() if isinstance(module, Experts)]


def collect(mixtures: Iterable[Experts], world: World) -> dict[str, float]:
    """Return what the records say of a step's routing, over all processes and layers, and begin to count anew.

    ``aux_loss`` is the mean balance loss, before its factor; ``dropped_tokens`` how many choices of an expert found no
    place. Each process counts what it computed, so processes that compute the same would count it twice.
    """
    total = torch.zeros(3, dtype=torch.float64, device=world.device)
    for each in mixtures:
        total += each.seen.to(world.device)
        each.seen = torch.zeros_like(each.seen)
    world.sum(total)
    balance, dropped, tokens = total.tolist()
    return {"aux_loss": balance / max(tokens, 1.0), "dropped_tokens": dropped}
