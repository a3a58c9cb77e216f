"""How often a large job is interrupted, how often to save, and what share of its time then trains (GATES 5)."""

from __future__ import annotations

import math

PLANNED_MTBF_HOURS = 8.0  # of a job on 1000 GPUs: measured at Meta's RSC-1 (1024 GPUs); node rates alone promise 29-83


def job_mtbf_hours(nodes: int, failures_per_1000_node_days: float) -> float:
    """Hours between failures of any of ``nodes``, failing independently: 1 / (N r).

    Optimistic: a whole cluster's rate is not a job's, and faults come in clusters. RSC-1's rate gives 29 h where 7.9 h
    were measured, so plan with the worse of this and :data:`PLANNED_MTBF_HOURS` on 1000 GPUs.
    """
    _require(nodes=nodes, failures_per_1000_node_days=failures_per_1000_node_days)
    return 24.0 * 1000.0 / (nodes * failures_per_1000_node_days)


def save_interval_seconds(save_seconds: float, mtbf_seconds: float) -> float:
    """Seconds of training between checkpoints that waste least (Daly 2006, higher order; Young's is its first term).

    sqrt(2 d M) [1 + sqrt(d/2M)/3 + (d/2M)/9] - d for d < 2M, else M; d stalls training, so a save in the background
    counts only what it holds up.
    """
    _require(save_seconds=save_seconds, mtbf_seconds=mtbf_seconds)
    if save_seconds >= 2 * mtbf_seconds:
        return mtbf_seconds
    half = save_seconds / (2 * mtbf_seconds)
    return math.sqrt(2 * save_seconds * mtbf_seconds) * (1 + math.sqrt(half) / 3 + half / 9) - save_seconds


def young_interval_seconds(save_seconds: float, mtbf_seconds: float) -> float:
    """Young's (1974) first-order interval sqrt(2 d M), which is what most tools set."""
    _require(save_seconds=save_seconds, mtbf_seconds=mtbf_seconds)
    return math.sqrt(2 * save_seconds * mtbf_seconds)


def uninterrupted(hours: float, mtbf_hours: float) -> float:
    """Probability that ``hours`` pass without a failure: exp(-T/M)."""
    _require(mtbf_hours=mtbf_hours)
    if not 0 <= hours < math.inf:
        raise ValueError(f"hours is {hours:g}; it must be a number from 0 up")
    return math.exp(-hours / mtbf_hours)


def expected_ettr(mtbf_seconds: float, restart_seconds: float, interval_seconds: float, save_seconds: float) -> float:
    """Expected share of wall time that trains (effective training time ratio; Kokolis et al. 2024).

    (1 - (u0 + dt/2)/M) / (1 + w/dt): a failure costs the restart u0 and half an interval dt, a save costs w. 0 where
    failures come faster than the job recovers.
    """
    _require(mtbf_seconds=mtbf_seconds, interval_seconds=interval_seconds)
    for name, value in (("restart_seconds", restart_seconds), ("save_seconds", save_seconds)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value:g}; it must be a number from 0 up")
    kept = 1 - (restart_seconds + interval_seconds / 2) / mtbf_seconds
    return max(0.0, kept) / (1 + save_seconds / interval_seconds)


def highest_rate(failures: int, exposure: float, *, confidence: float = 0.95) -> float:
    """Highest rate that ``failures`` in ``exposure`` leave plausible (Poisson, exact); about 3 / exposure for none.

    What a small stage proves of failures: 8 node-days without one leave up to 375 in 1000 node-days.
    """
    from scipy.special import gammaincinv

    _require(exposure=exposure)
    if failures < 0 or not 0 < confidence < 1:
        raise ValueError(f"{failures} failures at confidence {confidence:g}; 0 or more and a share are asked")
    return float(gammaincinv(failures + 1, confidence)) / exposure


def _require(**numbers: float) -> None:
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value:g}; it must be a positive number")
