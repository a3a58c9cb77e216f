"""The shape of the model that is trained, its parameter count and its FLOPs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer: pre-norm, RoPE, SwiGLU, tied embeddings, no biases."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """Trainable parameters: embedding (tied) + per layer 4 h^2 attention, 3 h f SwiGLU, 2 h norms + final norm."""
        h = self.hidden
        return self.vocabulary * h + self.layers * (4 * h * h + 3 * h * self.ffn + 2 * h) + h

    def flops_per_token(self, sequence_length: int) -> float:
        """Forward and backward FLOPs a token: 6 N + 12 L h s (Chowdhery et al. 2022, PaLM, appendix B)."""
        return 6.0 * self.parameters + 12.0 * self.layers * self.hidden * sequence_length
