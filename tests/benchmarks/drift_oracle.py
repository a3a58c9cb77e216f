"""What a detector on the same batch means could do that knows the noise and the change: how near ours is to the bound.

Shiryaev-Roberts on the likelihood of AR(1) batch means, each cut at 3.5 sd as ours are, for a change of known size. Its
threshold is not proven but set by simulation, so that exactly the asked share of quiet stages raises an alarm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tasks.statistics.detection import HIGHEST_Z


@dataclass(frozen=True)
class Noise:
    """Level, sd and lag-1 correlation of batch means; one for all stages, or one a stage."""

    mean: np.ndarray
    sd: np.ndarray
    rho: np.ndarray

    @classmethod
    def known(cls, means: np.ndarray) -> Noise:
        """Return that of all stages together: as good as known."""
        rest = means - means.mean()
        rho = (rest[:, 1:] * rest[:, :-1]).mean() / rest.var()
        return cls(*(np.full((1, 1), value) for value in (means.mean(), rest.std(), max(rho, 0.0))))

    def with_level_of(self, head: np.ndarray) -> Noise:
        """Return the same noise around each stage's own first window."""
        return Noise(head.mean(axis=1, keepdims=True), self.sd, self.rho)

    def evidence(self, means: np.ndarray, slower: float) -> np.ndarray:
        """Return ln R after each batch: R_j = R_{j-1} (ratio if the change was before) + (ratio if it begins here)."""
        x = (means / self.mean - 1) / (self.sd / self.mean)
        fresh = np.concatenate([x[:, :1], x[:, 1:] - self.rho * x[:, :-1]], axis=1) / np.sqrt(1 - self.rho**2)
        fresh = np.minimum(fresh, HIGHEST_Z)
        whole = slower / (self.sd / self.mean) / np.sqrt(1 - self.rho**2)  # of the first batch after the change
        rest = whole * (1 - self.rho)
        goes_on, begins = rest * fresh - rest**2 / 2, whole * fresh - whole**2 / 2
        found, now = np.empty_like(x), np.full(len(x), -np.inf)
        for at in range(x.shape[1]):
            now = np.logaddexp(now + goes_on[:, at], begins[:, at])
            found[:, at] = now
        return found


def delays(
    noise: tuple[Noise, Noise], quiet: np.ndarray, slowed: np.ndarray, slower: float, first: int, false: float
) -> np.ndarray:
    """Return batches from onset (batch ``first``) to alarm at a rate of ``false`` in ``quiet``; inf: never.

    ``noise`` is what is known of the quiet stages and of the slowed ones.
    """
    limit = np.quantile(noise[0].evidence(quiet, slower).max(axis=1), 1 - false)
    alarms = noise[1].evidence(slowed, slower)[:, first:] >= limit
    return np.where(alarms.any(axis=1), alarms.argmax(axis=1) + 1.0, math.inf)
