"""The optimizer's settings."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Optimizer:
    """AdamW with decoupled decay; norms, biases and embeddings are not decayed; ``clip`` bounds the global norm."""

    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    # Sequences a step for which betas[1] is meant: with other batches the second moment keeps its half-life in tokens.
    # None: it keeps it in steps, whatever the batch.
    reference_batch_sequences: int | None = None

    def second_beta(self, batch: int) -> float:
        """Return betas[1] for a step of ``batch`` sequences: to the power of the batch's growth.

        So half of the second moment's weight lies on the same number of tokens whatever the batch (Marek et al. 2025,
        arXiv:2507.07101). Never below betas[0]: Adam needs betas[0] < sqrt(betas[1]) to converge (Zhang et al. 2022,
        arXiv:2208.09632), and x125 in batch, as from 8 to 1000 GPUs, would leave .95 ** 125 = .002.
        """
        first, second = self.betas
        if self.reference_batch_sequences is None:
            return second
        scaled: float = second ** (batch / self.reference_batch_sequences)
        return max(scaled, min(first, second))

    def reference_steps(self, batch: int) -> float:
        """Return how many steps with betas[1] as it stands decay the second moment as one of ``batch`` does."""
        ours, second = self.second_beta(batch), self.betas[1]
        return 1.0 if ours == second else math.log(ours) / math.log(second)

    def problems(self) -> list[str]:
        """Return what is wrong with the numbers, each as a clause that begins with its key."""
        reference = self.reference_batch_sequences
        rules = {
            f"betas: {list(self.betas)} are not both at least 0 and below 1": not all(0 <= b < 1 for b in self.betas),
            f"eps: {self.eps:g} is not above 0": not 0 < self.eps < math.inf,
            f"weight_decay: {self.weight_decay:g} is below 0": not 0 <= self.weight_decay < math.inf,
            f"clip: {self.clip:g} is not above 0": not self.clip > 0,
            f"reference_batch_sequences: {reference} is less than 1": reference is not None and reference < 1,
        }
        return [text for text, wrong in rules.items() if wrong]
