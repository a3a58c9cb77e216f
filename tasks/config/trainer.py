"""The program that trains: ours, or any other that keeps the contract, and what it can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_serializer

from tasks.config.cluster import Strict, Text
from training import config as contract

CAPABILITIES = {
    "replay": "trains several spans, each with its own batch and learning rate, and repeats steps on the same samples",
    "held_out": "writes held_out rows",
    "resume": "goes on from its newest checkpoint when started again",
    "save_at": "writes a checkpoint after the step that hand_over_step names",
    "checkpoints": "writes checkpoint rows, or has a command that lists its checkpoints",
    "evaluate": "has a command that computes the held-out loss of a checkpoint",
    "sigusr1": "saves and exits when it gets SIGUSR1",
}
"""What a trainer may be able to do beside the required fields; optional fields of records count as well."""

_SCALEUP = ("{python}", "-m", "training.train", "{stage_dir}")


class Trainer(Strict):
    """A program that reads ``config.json``, appends records and exits 0 when done.

    Without ``command`` it is ours, which can do all. Two more commands are optional. ``evaluate`` prints
    ``{"loss": ..., "sequences": ...}``, the held-out loss of one checkpoint; ``checkpoints`` prints a line
    ``{"step": ..., "path": ..., "whole": true}`` for each that is there. ``{python}``, ``{stage_dir}``, ``{config}``
    and, of ``evaluate`` alone, ``{checkpoint}`` are filled in.
    """

    name: Text = "scaleup"
    command: tuple[Text, ...] = _SCALEUP
    capabilities: frozenset[str] = frozenset(CAPABILITIES) | frozenset(contract.OPTIONAL)
    evaluate: tuple[Text, ...] | None = ("{python}", "-m", "training.evaluate", "{checkpoint}", "--config", "{config}")
    checkpoints: tuple[Text, ...] | None = None
    settings: dict[str, Any] = Field(default_factory=dict, description="passed through as config.json's extra")

    @field_serializer("capabilities")
    def _in_order(self, value: frozenset[str]) -> list[str]:
        return sorted(value)  # a set has another order in every process, a frozen recipe must not

    def can(self, what: str) -> bool:
        """Return whether it has a capability or writes a field."""
        commands = {"evaluate": self.evaluate, "checkpoints": self.checkpoints}
        return what in self.capabilities or what in contract.REQUIRED or commands.get(what) is not None


def trainer_said(value: Any) -> Any:
    """Take the word ``scaleup``, or a foreign trainer's mapping, which promises nothing that it does not say."""
    if isinstance(value, str):
        if value != "scaleup":
            raise ValueError(f"unknown trainer {value!r}; write scaleup, or a mapping with the command of your own")
        return {"name": "scaleup"}
    if isinstance(value, Mapping) and value.get("name") != "scaleup":
        if "command" not in value:
            raise ValueError("has no command; a trainer of your own needs command: [program, '{stage_dir}']")
        return {"name": "own", "capabilities": [], "evaluate": None, **value}
    return value
