"""The errors a user can meet. Each message says what is wrong, where, the value, and what would be right."""

from __future__ import annotations


class ScaleupError(Exception):
    """Base of everything a user can cause or mend; the command line prints it without a traceback."""


class ConfigInvalid(ScaleupError):
    """An experiment or cluster file does not say what it must."""


class StageRefused(ScaleupError):
    """A stage may not start: not promoted, forecast against it, recipe changed, budget."""


class StageStopped(ScaleupError):
    """A running stage ended before its time: job failed, live gate, hours up, a person."""


class GateFailed(ScaleupError):
    """A verdict other than PASS at the end of a stage."""


class DecisionNeeded(GateFailed):
    """Nothing speaks against a stage, but its gates could not decide: a person may."""


class CheckpointUnsound(ScaleupError):
    """A checkpoint does not match its manifest."""


class LaunchFailed(ScaleupError):
    """The cluster did not take the job."""


class RecordsInvalid(ScaleupError):
    """A trainer's ``metrics.jsonl`` breaks its contract; the message names the line."""


class TableInvalid(ScaleupError):
    """A table of measured throughput cannot be read; the message names the line."""
