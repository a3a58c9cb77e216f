"""Events in a stream of steps: single spikes, and changes that stay."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def spikes(values: ArrayLike, *, window: int = 128, threshold: float = 6.0) -> NDArray[np.bool_]:
    """Mark steps whose z = (x - median) / (1.4826 MAD) over the ``window`` steps before exceeds ``threshold``.

    GATES 2.6. The first 10 steps have no history and are never marked; a value that is not finite always is.
    """
    x = np.asarray(values, dtype=float)
    marked: NDArray[np.bool_] = ~np.isfinite(x)
    if x.size <= 10:
        return marked
    padded = np.concatenate([np.full(window, np.nan), np.where(marked, np.nan, x)[:-1]])
    history = np.lib.stride_tricks.sliding_window_view(padded, window)[10 : x.size]
    rows = np.flatnonzero(np.isfinite(history).sum(axis=1) >= 10)
    median = np.nanmedian(history[rows], axis=1)
    mad = np.nanmedian(np.abs(history[rows] - median[:, None]), axis=1)
    tiny = 1e-12 + 1e-9 * np.abs(median)
    marked[10 + rows] |= (x[10 + rows] - median) / (1.4826 * mad + tiny) > threshold
    return marked
