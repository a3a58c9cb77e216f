"""The shape of the model that is trained, its parameter count, its FLOPs, and how its width scales rates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer of the GPT and LLaMA family: pre-norm, RoPE, no biases; what else it has is said here.

    A checkpoint names its shape; one written before a key existed has that key's default.
    """

    layers: int
    hidden: int
    heads: int
    ffn: int  # width inside the MLP, or inside each expert
    vocabulary: int
    kv_heads: int | None = None  # heads of keys and values, each shared by heads / kv_heads queries; None: one a head
    mlp: Literal["swiglu", "gelu"] = "swiglu"
    tied: bool = True  # the head's matrix is the embedding's
    rope_base: float = 10_000.0
    norm_eps: float | None = None  # None: the smallest difference that the activations' precision knows
    base_hidden: int | None = None  # muP: the width that rates were tuned at; None: rates are as given at any width
    experts: int = 1  # MLPs in a layer, of which each token is sent to experts_per_token; 1: no routing
    experts_per_token: int = 2
    expert_capacity: float = 1.25  # places of an expert, over the tokens it would get if all got the same number
    balance_factor: float = 0.01  # of the loss that pulls experts towards equal shares

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @property
    def kv_hidden(self) -> int:
        """Width of all keys, and of all values."""
        return (self.kv_heads or self.heads) * self.head_width

    @property
    def parameters(self) -> int:
        """Trainable parameters: embedding and head (one matrix if tied), the layers, the last norm."""
        table = self.vocabulary * self.hidden
        return table * (1 if self.tied else 2) + self.layers * self._layer + self.hidden

    @property
    def active_parameters(self) -> int:
        """Parameters that a token meets: of the experts only those that it is sent to."""
        idle = max(0, self.experts - self.experts_per_token)
        return self.parameters - self.layers * idle * self._mlp

    @property
    def _mlp(self) -> int:
        return (3 if self.mlp == "swiglu" else 2) * self.hidden * self.ffn

    @property
    def _layer(self) -> int:
        """Query and out h^2 each, key and value h x kv, the MLPs and their router, two norms."""
        h = self.hidden
        router = h * self.experts if self.experts > 1 else 0
        return 2 * h * h + 2 * h * self.kv_hidden + self.experts * self._mlp + router + 2 * h

    def flops_per_token(self, sequence_length: int) -> float:
        """Forward and backward FLOPs a token: 6 N + 12 L h s (Chowdhery et al. 2022, PaLM, appendix B).

        N are the parameters that a token meets, without an embedding that is only looked up (where it is not tied).
        """
        looked_up = 0 if self.tied else self.vocabulary * self.hidden
        return 6.0 * (self.active_parameters - looked_up) + 12.0 * self.layers * self.hidden * sequence_length

    def expert_places(self, sequence_length: int) -> int:
        """How many tokens of one sequence an expert takes; what is routed to it beyond that is dropped."""
        return math.ceil(self.expert_capacity * self.experts_per_token * sequence_length / self.experts)

    @property
    def width_factor(self) -> float:
        """How many times wider than the model that the rates were tuned at; 1 without muP."""
        return 1.0 if self.base_hidden is None else self.hidden / self.base_hidden

    def initial_deviation(self, name: str) -> float:
        """Standard deviation of a matrix's first weights, by its name in the model.

        Radford et al. 2019 (GPT-2): 0.02, and what writes into the residual stream by 1 / sqrt(2 layers) less. With muP
        (Yang et al. 2022, table 8) a hidden matrix's variance goes with 1 / width, the embedding's stays. The router
        maps a width to a few numbers, as an output does, so its deviation goes with 1 / width (table 3).
        """
        parts = name.split(".")
        if parts[0] in ("embedding", "head"):
            return 0.02
        if "router" in parts:
            return 0.02 / self.width_factor
        writes = "out" in parts or "down" in parts
        return 0.02 / math.sqrt(self.width_factor) / (math.sqrt(2 * self.layers) if writes else 1.0)

    def rate_factor(self, name: str) -> float:
        """Factor on the learning rate of a parameter, by its name (Adam; Yang et al. 2022, table 8).

        Matrices whose inputs grow with the width learn 1 / width as fast; embedding, head and norms as given. The
        logits are divided by the width factor in turn. Grow heads in number, not in width: muP's attention scale of
        1 / width of a head is then the usual one but for a constant.
        """
        is_hidden = name.startswith("blocks.") and "norm" not in name
        return 1.0 / self.width_factor if is_hidden else 1.0

    def problems(self) -> Iterator[str]:
        """Yield what no such model can have, each a sentence that names what to change."""
        if self.hidden % (2 * self.heads):
            yield f"hidden {self.hidden} does not divide into {self.heads} heads of even width; {self._near()} would"
        if self.kv_heads is not None and (self.kv_heads > self.heads or self.heads % self.kv_heads):
            fit = ", ".join(str(n) for n in range(1, self.heads + 1) if self.heads % n == 0)
            yield f"kv_heads {self.kv_heads} do not share {self.heads} heads evenly; {fit} would"
        if self.experts > 1 and not 1 <= self.experts_per_token <= self.experts:
            yield f"experts_per_token {self.experts_per_token} must be between 1 and the {self.experts} experts"

    def _near(self) -> str:
        unit = 2 * self.heads
        near = sorted({self.hidden // unit * unit, -(-self.hidden // unit) * unit} - {0})
        return " or ".join(map(str, near))
