"""How long a stage is watched at most, and whether it was a person who ended that; light enough for DAG files."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks.config.launchers import SlurmConfig
from tasks.plan import StagePlan

REPAIR_HOURS = 1.0  # what attempts after lost ones may add
PROBE_HOURS = 1.0  # a probe of a few dozen steps that takes longer is broken


def timeout_seconds(decided: StagePlan) -> float:
    """Return how long watching a stage may take: in the queue, its hours, what repairs and bought probes may add.

    The looks themselves end a stage before that; this is for whoever calls them, whose own limit may be shorter.
    """
    queues = decided.cluster.queue_hours * queued_times(decided)
    return 3600.0 * (queues + decided.hours + REPAIR_HOURS) + probing_seconds(decided)


def queued_times(decided: StagePlan) -> int:
    """Return how often a stage's job may wait in its queue: once a segment, and on Slurm once a repair in a row."""
    launcher = decided.cluster.launcher
    if not isinstance(launcher, SlurmConfig):
        return 1
    segments = math.ceil(decided.hours / launcher.segment_hours) if launcher.segment_hours else 1
    return segments + launcher.restarts


def probing_seconds(decided: StagePlan) -> float:
    """Return how long all probes that the stage's gates may buy can take, each with its own time in the queue."""
    return 3600.0 * decided.trained.stage.probes * (decided.cluster.queue_hours + PROBE_HOURS)


def failed_by_hand(state: str | None, tries: Sequence[int] | None, exception: str | None) -> bool:
    """Say whether a person made the watching task fail, from what an orchestrator still knows of it afterwards.

    ``tries`` are the number of its last try and the greatest at which it would be tried again; ``exception`` is what
    the task noted when it failed by itself. All that fails by itself (an exception, a kill -9, a lost heartbeat) is
    tried again while there are tries left; only a person fails a task before, or its whole run. In doubt, for
    instance when the last try was killed, the answer is no: the job lives on.
    """
    return state == "failed" and exception is None and tries is not None and tries[0] <= tries[1]
