"""All gates by name: importing this package fills :data:`REGISTRY`, from which YAML, reports and ``load()`` read."""

from tasks.gates import loss, recovery, stability, throughput
from tasks.gates.core import (
    REGISTRY,
    Check,
    EarlierStage,
    Evidence,
    Gate,
    Measurement,
    Noise,
    Outcome,
    Probe,
    StageFacts,
    Unusable,
    When,
    gate,
    judge,
    judge_all,
    worst,
)

__all__ = [
    "REGISTRY",
    "Check",
    "EarlierStage",
    "Evidence",
    "Gate",
    "Measurement",
    "Noise",
    "Outcome",
    "Probe",
    "StageFacts",
    "Unusable",
    "When",
    "gate",
    "judge",
    "judge_all",
    "loss",
    "recovery",
    "stability",
    "throughput",
    "worst",
]
