"""What a site's Slurm needs to be told: the ``launcher:`` block of a cluster file, as a launcher holds it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tasks.launchers.slurm.client import Client


@dataclass(frozen=True)
class Site:
    """One Slurm cluster as this project uses it; ``tasks.config.launchers`` explains each field to users."""

    kind: Literal["slurm"] = "slurm"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    exclusive: bool = True
    options: tuple[str, ...] = ()
    srun_options: tuple[str, ...] = ()
    start: Literal["torchrun", "command"] = "torchrun"
    processes_per_node: int | None = None
    real_nodes: int | None = None
    port: int = 29500
    requeue: bool = True
    segment_hours: float | None = None
    restarts: int = 3
    max_restarts: int = 100
    grace_seconds: float = 10.0
    save_seconds: float = 120.0
    settle_seconds: float = 15.0
    bad_node_hours: float = 24.0
    network: Mapping[str, str] = field(default_factory=dict)  # environment of NCCL and torch
    ssh: tuple[str, ...] = ()  # host and options of a login node; empty: the commands run here
    memory: str = os.devnull  # file that remembers bad nodes for all runs on this cluster

    @property
    def client(self) -> Client:
        """The commands of this cluster."""
        return Client(self.ssh)

    @property
    def bad_nodes_file(self) -> Path:
        """Where nodes are remembered on which a job was lost."""
        return Path(self.memory)
