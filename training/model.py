"""A decoder-only transformer of the GPT and LLaMA family, as its shape says; :class:`ModelShape` lists the choices.

Sources: Touvron et al. 2023 (LLaMA) for the block, Su et al. 2021 for RoPE, Shazeer 2020 for SwiGLU, Ainslie et al.
2023
for grouped queries, Radford et al. 2019 (GPT-2) for the initialisation, Yang et al. 2022 for its scaling with width.

A process may hold a part: some of the blocks, and of a matrix some rows or columns. So modules read widths from the
tensors that they are given, and parameters are known by their names in the whole model.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from training.config import ConfigError, ModelShape
from training.moe import Experts

NO_TARGET = -100  # a target that weighs nothing; sequences that only fill up a micro-batch consist of it


class Attention(nn.Module):
    """Causal self-attention over [batch, sequence, hidden]; scaled dot product by torch's own kernel."""

    def __init__(self, shape: ModelShape) -> None:
        """Make the four projections: hidden x hidden, of keys and values hidden x their heads' width."""
        super().__init__()
        self.width, self.rope_base = shape.head_width, shape.rope_base
        self.grouped = shape.kv_hidden != shape.hidden
        self.query = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.key = nn.Linear(shape.hidden, shape.kv_hidden, bias=False)
        self.value = nn.Linear(shape.hidden, shape.kv_hidden, bias=False)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend with the heads that this process holds; return [batch, sequence, hidden]."""
        projected = (projection(x) for projection in (self.query, self.key, self.value))
        query, key, value = (p.unflatten(-1, (-1, self.width)).transpose(1, 2) for p in projected)
        cosine, sine = rope(query.shape[2], self.width, self.rope_base, query.device)
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=self.grouped)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """SwiGLU, a gated product of two projections and one back to hidden; or GELU between one and one back."""

    def __init__(self, shape: ModelShape) -> None:
        """Make the matrices, hidden x ffn and back."""
        super().__init__()
        self.gate = nn.Linear(shape.hidden, shape.ffn, bias=False) if shape.mlp == "swiglu" else None
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return x of the same shape, [batch, sequence, hidden]."""
        inner = functional.gelu(self.up(x)) if self.gate is None else functional.silu(self.gate(x)) * self.up(x)
        out: Tensor = self.down(inner)
        return out


class Block(nn.Module):
    """One layer: attention, then an MLP or a mixture of them, each after a norm and around a residual."""

    def __init__(self, shape: ModelShape) -> None:
        """Make both halves and their norms."""
        super().__init__()
        self.recompute = False  # set by GPT.recompute
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.ffn = FeedForward(shape) if shape.experts == 1 else Experts(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return x of the same shape, [batch, sequence, hidden]."""
        if self.recompute and torch.is_grad_enabled():
            again: Tensor = checkpoint(self._compute, x, use_reentrant=False, preserve_rng_state=False)
            return again
        return self._compute(x)

    def _compute(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.ffn(self.ffn_norm(x))
        return out


class GPT(nn.Module):
    """The whole model, or the ``blocks`` of it that one stage of a pipeline holds.

    The embedding stands before block 0, the last norm and the head after the last block.
    """

    def __init__(self, shape: ModelShape, seed: int, blocks: range | None = None) -> None:
        """Build and initialise (on the meta device only build); raise ConfigError for an impossible shape."""
        super().__init__()
        for problem in shape.problems():
            raise ConfigError(f"model: {problem}")
        held = range(shape.layers) if blocks is None else blocks
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden) if held.start == 0 else None
        self.blocks = nn.ModuleDict({str(number): Block(shape) for number in held})
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps) if held.stop == shape.layers else None
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False) if held.stop == shape.layers else None
        self.tie()
        with torch.no_grad():
            for name, parameter in self.named().items():
                if not parameter.is_meta:
                    parameter.copy_(initial(name, parameter.shape, shape, seed))

    def tie(self) -> None:
        """Make a tied head's weight the embedding's, where both are here; moving parameters may have parted them."""
        if self.shape.tied and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.weight

    def named(self) -> dict[str, nn.Parameter]:
        """Return the parameters held here by their names in the whole model, where a tied head has none of its own."""
        head = "embedding." if self.shape.tied else "head."
        return {name.replace("head.", head): parameter for name, parameter in self.named_parameters()}

    def recompute(self, yes: bool) -> None:
        """Keep of a block's activations its input alone, and compute the rest again going backward; or keep all."""
        for block in self.blocks.values():
            cast(Block, block).recompute = yes

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [batch, sequence, vocabulary] for tokens [batch, sequence].

        A stage that is not the first takes, and one that is not the last returns, [batch, sequence, hidden].
        """
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.norm(x)
            x = self.head(x if self.shape.base_hidden is None else x / self.shape.width_factor)
        return x

    def loss_sum(self, samples: Tensor) -> Tensor:
        """Return the cross-entropy in nats, summed over tokens; ``samples`` is [batch, sequence + 1]."""
        return loss_sum(self(samples[:, :-1]), samples[:, 1:])


def loss_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy in nats of logits [batch, sequence, vocabulary], summed over all but NO_TARGET."""
    flat = logits.float().flatten(0, 1)
    return functional.cross_entropy(flat, targets.flatten(), ignore_index=NO_TARGET, reduction="sum")


def initial(name: str, size: torch.Size, shape: ModelShape, seed: int) -> Tensor:
    """Return a parameter's first values, float32 on the CPU: a function of its name and the seed alone.

    So a process that holds a few blocks draws only theirs, and every layout begins with the same model.
    """
    if len(size) == 1:
        return torch.ones(size)
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7]))
    return torch.empty(size, dtype=torch.float32).normal_(0.0, shape.initial_deviation(name), generator=generator)


@lru_cache(maxsize=16)
def rope(length: int, width: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of RoPE, each float32 [length, width]."""
    frequency = base ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angle = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency).repeat(1, 2)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Apply RoPE to [batch, heads, sequence, width]: pair (i, i + width / 2) turns by its position's angle."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cosine + turned * sine).to(x.dtype)
