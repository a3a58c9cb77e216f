"""Several launches of one and the same thing: what they say together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tasks.statistics.means import Mean, t_quantile

REFUTED = 0.99  # share of sound sets of launches that scatter no more than this


def across_launches(
    launches: Sequence[Mean], *, launch_sd: float, launch_df: float = math.inf, confidence: float = 0.95
) -> Mean:
    """Mean over launches, each of which a draw of relative sd ``launch_sd`` has moved (GATES 3: s_launch^2 / m).

    ``launches`` hold positive means with the noise within each launch only. Weights are 1 / (within + launch^2), on
    logarithms; degrees of freedom by Satterthwaite, those of ``launch_sd`` being infinite where it is a prior, repeats
    - 1 where it was measured. Launches that scatter more than 99% of such sets would refute ``launch_sd``: then the
    interval grows by the Birge ratio (Birge, Phys. Rev. 40, 1932). Raises ValueError on no launch or one not positive.
    """
    values = np.array([m.value for m in launches])
    if values.size == 0 or not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"{values.size} launches, of which all must be finite and positive")
    within = np.array([(m.se / m.value) ** 2 for m in launches])
    weights = 1.0 / (within + launch_sd**2)
    part = weights / weights.sum()
    middle = float((part * np.log(values)).sum())
    own, drawn = part**2 * within, float((part**2).sum()) * launch_sd**2
    total = float(own.sum()) + drawn
    spread = float((own**2 / np.array([m.df for m in launches])).sum()) + drawn**2 / launch_df
    df = total**2 / spread if spread > 0 else math.inf
    total *= _excess(float((weights * (np.log(values) - middle) ** 2).sum()), values.size - 1)
    half = t_quantile((1 + confidence) / 2, df) * math.sqrt(total)
    value, n, batches = math.exp(middle), sum(m.n for m in launches), sum(m.batches for m in launches)
    return Mean(value, value * math.sqrt(total), df, value * math.exp(-half), value * math.exp(half), n, batches)


def _excess(q: float, df: int) -> float:
    """Return the Birge ratio of Cochran's ``q`` where that refutes the variances it was made with, else 1."""
    from scipy.special import gammaincinv

    return q / df if df > 0 and q > 2.0 * float(gammaincinv(df / 2.0, REFUTED)) else 1.0
