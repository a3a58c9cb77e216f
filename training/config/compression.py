"""How gradients travel between processes that hold the same weights: as they are, or as codes of a few bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Compression:
    """Gradients are sent as codes of ``bits`` bits an element; what the codes lose is added to the next step's."""

    bits: Literal[1, 2, 4] = 2

    def needless(self, copies: int, virtual: bool) -> str | None:
        """Say why nothing would be compressed, if so, where there are ``copies`` of the weights."""
        if copies < 2:
            return "there is one copy of the weights, so no gradient is sent to another; leave it out, or lower shard"
        if virtual:
            return (
                "virtual ranks, and sums of reduction exact, are added up in float64 inside processes; leave it out, "
                "or train with a process a GPU, or with a layout of shards"
            )
        return None
