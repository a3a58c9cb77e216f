"""How long watching a stage may take at most; light enough for DAG files, which need it to set a sensor's limit."""

from __future__ import annotations

from tasks.plan import StagePlan

REPAIR_HOURS = 1.0  # what attempts after lost ones may add


def timeout_seconds(decided: StagePlan) -> float:
    """Return how long watching a stage may take: its time in the queue, its hours, and what repairs may add.

    The looks themselves end a stage before that; this is for whoever calls them, whose own limit may be shorter.
    """
    return 3600.0 * (decided.cluster.queue_hours + decided.hours + REPAIR_HOURS)
