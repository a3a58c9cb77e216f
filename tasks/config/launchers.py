"""The ``launcher:`` block of a cluster file: local, or Slurm with what a site and its network need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, StrictBool, Tag

from tasks.config.values import Count, CountOrZero, NotNegative, Positive, Strict, Text

KINDS = ("local", "slurm")
LATER = {"kubernetes": "the launchers 'local' and 'slurm' do"}


def _known(value: Any) -> Any:
    if value in LATER:
        raise ValueError(f"{value!r} does not work yet; {LATER[value]}")
    if value not in KINDS:
        raise ValueError(f"must be {' or '.join(KINDS)}, not {value!r}")
    return value


class LocalConfig(Strict):
    """Processes of this machine, started again from their newest checkpoint after a death."""

    kind: Annotated[Literal["local"], BeforeValidator(_known)] = Field(description="write kind: local or kind: slurm")
    restarts: CountOrZero = Field(default=3, description="how often in a row a job may die without a new step between")
    max_restarts: CountOrZero = Field(default=100, description="how often a job may start again in all")
    grace_seconds: Positive = Field(default=10.0, description="seconds between SIGTERM and SIGKILL")
    save_seconds: Positive = Field(
        default=60.0, description="seconds before SIGTERM in which a trainer that answers SIGUSR1 may save"
    )


class Nccl(Strict):
    """How NCCL finds and uses the network. What is left out is left to NCCL's own default.

    Waiting for a collective and giving it up stays at torch's own default (TORCH_NCCL_ASYNC_ERROR_HANDLING=3).
    """

    interfaces: Text | None = Field(
        default=None,
        description="NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME: bootstrap and gloo otherwise take the first interface "
        "that is up, often one that other nodes cannot reach (docker0, a BMC)",
    )
    hcas: Text | None = Field(
        default=None,
        description="NCCL_IB_HCA: the ports of the compute fabric, for example '=mlx5_0,mlx5_1'; without it storage "
        "and management ports carry gradients too",
    )
    gid_index: CountOrZero | None = Field(
        default=None,
        description="NCCL_IB_GID_INDEX: on RoCE the row of the GID table that is RoCE v2 (`show_gids`); the wrong one "
        "is not routed, and the job hangs at its first collective",
    )
    traffic_class: Annotated[CountOrZero, Field(le=255)] | None = Field(
        default=None,
        description="NCCL_IB_TC: the DSCP (times 4) that switches map to the queue with PFC and ECN; with the default "
        "0 gradients share the lossy queue, and one congested port stalls every rank",
    )
    ib_timeout: Annotated[CountOrZero, Field(le=31)] | None = Field(
        default=None,
        description="NCCL_IB_TIMEOUT: 4.096 us * 2^n before a packet is sent again; 20 to 22 ride out a switch that "
        "reroutes",
    )
    ib_retries: Annotated[CountOrZero, Field(le=7)] | None = Field(
        default=None, description="NCCL_IB_RETRY_CNT: how often it is sent again before the job dies of it"
    )
    debug: Literal["VERSION", "WARN", "INFO"] = Field(
        default="WARN", description="NCCL_DEBUG: WARN names the rank and port of an error; INFO is for a first start"
    )
    flight_recorder: CountOrZero = Field(
        default=2000,
        description="TORCH_FR_BUFFER_SIZE: collectives remembered by each rank and written to the attempt's folder "
        "when one times out: which rank was missing at which call; 0 turns it off",
    )

    def variables(self) -> dict[str, str]:
        """Return the environment of a job that these settings make; where the recorder writes, the launcher says."""
        said = {
            "NCCL_SOCKET_IFNAME": self.interfaces,
            "GLOO_SOCKET_IFNAME": self.interfaces,
            "NCCL_IB_HCA": self.hcas,
            "NCCL_IB_GID_INDEX": self.gid_index,
            "NCCL_IB_TC": self.traffic_class,
            "NCCL_IB_TIMEOUT": self.ib_timeout,
            "NCCL_IB_RETRY_CNT": self.ib_retries,
            "NCCL_DEBUG": self.debug,
            "TORCH_FR_BUFFER_SIZE": self.flight_recorder,
            # torch 2.13 reads the older name where the newer is not there, and a site's profile may set it.
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1" if self.flight_recorder else "0",
        }
        return {name: str(value) for name, value in said.items() if value is not None}


class Ssh(Strict):
    """The four Slurm commands run on a login node, by OpenSSH's client and one connection that is kept open."""

    kind: Literal["ssh"]
    host: Text = Field(description="what `ssh` is told: a name of ~/.ssh/config, or user@host")
    options: tuple[Text, ...] = Field(default=(), description="further arguments of ssh, for example ['-p', '2222']")


class SlurmConfig(Strict):
    """Jobs of a Slurm cluster, by sbatch, squeue and scancel; the folders of runs must be the nodes' as well."""

    kind: Literal["slurm"]
    partition: Text | None = None
    account: Text | None = None
    qos: Text | None = None
    reservation: Text | None = None
    constraint: Text | None = None
    exclusive: StrictBool = Field(default=True, description="whole nodes, shared with no other job")
    options: tuple[Text, ...] = Field(
        default=(), description="sbatch's own options as they are, for example ['--gres-flags=enforce-binding']"
    )
    srun_options: tuple[Text, ...] = Field(default=(), description="srun's own options as they are")
    start: Literal["torchrun", "command"] = Field(
        default="torchrun",
        description="torchrun: one a node, which starts the trainer once a GPU; command: the trainer once a node",
    )
    processes_per_node: Count | None = Field(default=None, description="processes of a torchrun; default: one a GPU")
    real_nodes: Count | None = Field(
        default=None,
        description="where GPUs are emulated: how many nodes run the trainer; the others run a stand-in and record so",
    )
    port: Annotated[Count, Field(le=65535)] = Field(default=29500, description="port of the first node's rendezvous")
    requeue: StrictBool = Field(default=True, description="Slurm starts the job again after a lost node or preemption")
    segment_hours: Positive | None = Field(
        default=None, description="the partition's time limit: a longer stage saves and is requeued before it"
    )
    restarts: CountOrZero = Field(default=3, description="how often in a row a job may die without a new step between")
    max_restarts: CountOrZero = Field(default=100, description="how often a job may start again in all")
    grace_seconds: Positive = Field(default=10.0, description="seconds between SIGTERM and SIGKILL")
    save_seconds: Positive = Field(
        default=120.0, description="seconds before a time limit at which a trainer that can is told to save"
    )
    settle_seconds: NotNegative = Field(
        default=15.0,
        description="how long after an unanswered sbatch its job may still appear; longer than Slurm's MessageTimeout",
    )
    bad_node_hours: NotNegative = Field(
        default=24.0, description="how long a node on which a job was lost is left out of later jobs"
    )
    nccl: Nccl = Nccl()
    transport: Ssh | None = Field(default=None, description="{kind: ssh, host: login1}; without it, commands run here")


def _choose(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return "=slurm" if kind == "slurm" else "=local"


LauncherConfig = Annotated[
    Annotated[LocalConfig, Tag("=local")] | Annotated[SlurmConfig, Tag("=slurm")], Discriminator(_choose)
]
