"""What a threshold may be: types of the gates' keyword parameters, which `scaleup validate` holds a YAML file to."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Ratio = Annotated[float, Gt(0)]  # of two like quantities; may exceed 1
Part = Annotated[float, Gt(0), Le(1)]  # of a whole
Probability = Annotated[float, Ge(0), Le(1)]
Confidence = Annotated[float, Gt(0), Lt(1)]
RelativeSd = Annotated[float, Gt(0), Lt(1)]
Excess = Annotated[float, Ge(1)]  # factor by which something may be larger than it should
