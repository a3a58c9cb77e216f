"""The end of a dead job's log, for the message that a person reads first."""

from __future__ import annotations

from pathlib import Path

_TAIL_BYTES = 16_384
_LINES = 12

_HINTS = (
    ("No space left on device", "the disk is full: free some, or set checkpointing.keep lower"),
    ("CUDA out of memory", "lower micro_batch_sequences, or shard the model over more GPUs (layout)"),
    ("ModuleNotFoundError", "the job's environment lacks a module: see environment: in the cluster file"),
    ("Address already in use", "another job on this machine holds the port; one of them must end"),
    ("Permission denied", "the job's user may not read or write a path that it names"),
    ("ConfigError", "config.json does not say what the trainer needs; it was written by another version"),
)


def last_lines(log: Path, lines: int = _LINES) -> list[str]:
    """Return the last lines of a log, reading its end only; of no log: nothing."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return text.splitlines()[-lines:]


def describe_end(name: str, reason: str, log: Path) -> str:
    """Return what is said of a job that ended: why, a hint where its last lines hold a known sign, log, last lines."""
    said = last_lines(log)
    hint = next((advice for sign, advice in _HINTS if any(sign in line for line in said)), None)
    told = f"{name} ended before its time: {reason}" + (f"; {hint}" if hint else "")
    return (
        "\n".join([told, f"{log} ends with:", *(f"  {line}" for line in said)]) if said else f"{told} ({log} is empty)"
    )
