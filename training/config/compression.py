"""How gradients travel between processes that hold the same weights: as they are, or as codes of a few bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Compression:
    """Gradients are sent as codes of ``bits`` bits an element; what the codes lose is added to the next step's."""

    bits: Literal[1, 2, 4] = 2
