"""A decoder-only transformer: pre-norm with RMSNorm, RoPE, SwiGLU, tied embeddings, no biases.

Sources: Touvron et al. 2023 (LLaMA) for the block, Su et al. 2021 for RoPE, Shazeer 2020 for SwiGLU,
Radford et al. 2019 (GPT-2) for the initialisation with residual projections scaled by 1 / sqrt(2 layers).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.config import ConfigError, ModelShape

ROPE_BASE = 10_000.0


class Attention(nn.Module):
    """Causal self-attention over [batch, sequence, hidden]; scaled dot product by torch's own kernel."""

    def __init__(self, shape: ModelShape) -> None:
        """Make the four projections, each hidden x hidden."""
        super().__init__()
        self.heads = shape.heads
        self.query = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.key = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.value = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Attend; ``cosine`` and ``sine`` are of shape [sequence, hidden / heads]."""
        batch, length, hidden = x.shape
        split = (batch, length, self.heads, hidden // self.heads)
        query, key, value = (p(x).view(split).transpose(1, 2) for p in (self.query, self.key, self.value))
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return out


class Block(nn.Module):
    """One layer: attention, then SwiGLU, each after a norm and around a residual."""

    def __init__(self, shape: ModelShape) -> None:
        """Make attention, the three SwiGLU matrices and the two norms."""
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.hidden)
        self.gate = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return x of the same shape, [batch, sequence, hidden]."""
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        normed = self.ffn_norm(x)
        out: Tensor = x + self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return out


class GPT(nn.Module):
    """The whole model. Its initial weights depend on ``seed`` alone, not on any generator's state."""

    def __init__(self, shape: ModelShape, seed: int) -> None:
        """Build and initialise; raise ConfigError for a shape that no such model can have."""
        super().__init__()
        if shape.hidden % (2 * shape.heads):
            raise ConfigError(f"model: hidden {shape.hidden} does not divide into {shape.heads} heads of even width")
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden)
        self._tables: tuple[Tensor, Tensor] | None = None
        generator = torch.Generator().manual_seed(seed)
        residual = 0.02 / math.sqrt(2 * shape.layers)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() > 1:
                    is_residual = name.endswith(("attention.out.weight", "down.weight"))
                    parameter.normal_(0.0, residual if is_residual else 0.02, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [batch, sequence, vocabulary] for tokens [batch, sequence]."""
        x: Tensor = self.embedding(tokens)
        cosine, sine = self._rope(tokens.shape[1], x)
        for block in self.blocks:
            x = block(x, cosine, sine)
        return functional.linear(self.norm(x), self.embedding.weight)

    def loss_sum(self, samples: Tensor) -> Tensor:
        """Return the cross-entropy in nats, summed over tokens; ``samples`` is [batch, sequence + 1]."""
        logits = self(samples[:, :-1]).float()
        return functional.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten(), reduction="sum")

    def _rope(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rotation tables for a length, made once."""
        if self._tables is None or len(self._tables[0]) != length or self._tables[0].device != like.device:
            width = self.shape.hidden // self.shape.heads
            frequency = ROPE_BASE ** (-torch.arange(0, width, 2, device=like.device, dtype=torch.float32) / width)
            angle = torch.outer(torch.arange(length, device=like.device, dtype=torch.float32), frequency).repeat(1, 2)
            self._tables = angle.cos(), angle.sin()
        return self._tables


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Apply RoPE to [batch, heads, sequence, width]: pair (i, i + width / 2) turns by its position's angle."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cosine + turned * sine).to(x.dtype)
