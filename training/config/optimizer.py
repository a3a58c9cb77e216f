"""The optimizer's settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Optimizer:
    """AdamW with decoupled decay; norms and embeddings are not decayed; ``clip`` bounds the global gradient norm."""

    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
