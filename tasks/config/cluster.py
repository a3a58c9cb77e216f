"""A cluster file: where jobs run, and, where its GPUs are emulated, what a GPU and its network would do."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictStr, ValidationError

from tasks.config import files
from tasks.config.errors import Problem, absent, from_pydantic, invalid
from tasks.config.launchers import LauncherConfig, SlurmConfig
from tasks.config.store import Store, store_problems
from tasks.config.values import Count, CountOrZero, NotNegative, Part, Positive, Strict, Text

__all__ = ["Count", "CountOrZero", "NotNegative", "Part", "Positive", "Strict", "Text"]


class Link(Strict):
    """One kind of connection as a GPU sees it: Hockney's T = latency + bytes / bandwidth."""

    latency_us: NotNegative = Field(description="microseconds until the first byte")
    gbytes_per_second: Positive = Field(description="gigabytes a second that one GPU reaches")


class Tier(Strict):
    """A level of the network between nodes: it joins up to ``gpus`` GPUs, at ``factor`` of the bandwidth."""

    gpus: Count = Field(description="how many GPUs this tier joins")
    factor: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)] = Field(
        default=1.0, description="part of the bandwidth between nodes that is left"
    )


class Network(Strict):
    """What carries gradients: inside a node, between nodes, and how far up which bandwidth holds."""

    inside_node: Link = Field(description="latency_us and gbytes_per_second between GPUs of one node")
    between_nodes: Link = Field(description="latency_us and gbytes_per_second between GPUs of two nodes")
    tiers: tuple[Tier, ...] = Field(default=(), description="a list of {gpus, factor}, ascending")
    overlap: Part = Field(default=0.0, description="part of the compute time behind which communication hides")


class Noise(Strict):
    """How modelled step times vary, in relative terms; every draw comes from the run's seed."""

    launch_sd: NotNegative = Field(default=0.005, description="standard deviation from launch to launch")
    step_sd: NotNegative = Field(default=0.01, description="standard deviation from step to step")
    autocorrelation: Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)] = Field(
        default=0.0, description="how much of a step's deviation carries over to the next"
    )
    spike_rate: Part = Field(default=0.0, description="chance that a step is a spike")
    spike_factor: Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)] = Field(
        default=1.0, description="how many times longer a spiked step takes"
    )


class Secrets(Strict):
    """Variables whose values never stand in a configuration file: NAME=value lines in a file of mode 0600."""

    file: Text = Field(description="a file of NAME=value lines, readable by you alone (mode 0600)")
    names: tuple[Text, ...] = Field(description="the variables to take from it")


class Environment(Strict):
    """What a job finds around it: an image or a virtual environment, mounts, set-up lines, variables, secrets."""

    kind: Literal["none", "venv", "pyxis", "apptainer"] = Field(
        default="none", description="pyxis and apptainer: an image, on Slurm"
    )
    venv: Text | None = Field(default=None, description="folder of the virtual environment, for kind venv")
    image: Annotated[StrictStr, Field(pattern=r"^.+@sha256:[0-9a-f]{64}$")] | None = Field(
        default=None, description="an image by its digest, NAME@sha256:..."
    )
    mounts: tuple[Annotated[StrictStr, Field(pattern=r"^/[^:,]*:/[^:,]*(:ro)?$")], ...] = Field(
        default=(), description="HERE:INSIDE or HERE:INSIDE:ro, both absolute; the runs' folder is mounted by itself"
    )
    modules: tuple[Annotated[StrictStr, Field(pattern=r"^[\w./+-]+$")], ...] = Field(
        default=(), description="names for `module load`, before the set-up lines; on Slurm"
    )
    setup: tuple[Text, ...] = Field(default=(), description="shell lines that run before the trainer")
    variables: dict[str, StrictStr] = Field(default_factory=dict)
    secrets: Secrets | None = None


class Cluster(Strict):
    """Where jobs run. With ``emulated`` its GPUs do not exist: step times come from ``network`` and ``noise``."""

    name: Text = Field(default="", json_schema_extra={"filled": True})
    description: StrictStr = ""
    launcher: LauncherConfig = Field(description="how jobs start, for example {kind: local}")
    gpus_per_node: Count = Field(description="how many GPUs a node has")
    nodes: Count = Field(description="how many nodes there are")
    emulated: StrictBool = Field(default=False, description="true where the GPUs do not exist and are modelled")
    network: Network | None = Field(default=None, description="links inside and between nodes, tiers, overlap")
    flops_per_gpu: Positive | None = Field(default=None, description="FLOP/s that a GPU reaches on such a model")
    memory_gib_per_gpu: Positive | None = Field(default=None, description="GiB of memory of one GPU")
    noise: Noise = Noise()
    price_per_gpu_hour: NotNegative = Field(default=0.0, description="US dollars")
    store: Store = Store()
    environment: Environment = Environment()
    queue_hours: NotNegative = Field(default=0.0, description="how long a job may wait before it runs")
    orphan_hours: Positive = Field(default=6.0, description="how long a job lives on when the pipeline lost it")
    poll_seconds: Positive = Field(default=30.0, description="how often a running job is looked at")

    @property
    def gpus(self) -> int:
        """GPUs of the whole cluster."""
        return self.gpus_per_node * self.nodes

    def tier(self, gpus: int) -> int:
        """Return how many network tiers a job of ``gpus`` spans: 0 inside a node, 1 between nodes, 2 and up beyond."""
        if gpus <= self.gpus_per_node:
            return 0
        tiers = self.network.tiers if self.network else ()
        return 1 + sum(tier.gpus < gpus for tier in tiers)


def clusters() -> list[str]:
    """Return the names of all clusters that have a file."""
    return files.names("clusters")


def load_cluster(name: str) -> Cluster:
    """Return the cluster of that name; raise ConfigInvalid with all that is wrong in its file."""
    path = files.config_root() / "clusters" / f"{name}.yaml"
    if not path.is_file():
        raise absent(path, "cluster", clusters())
    raw, extends = files.read(path, "cluster")
    return parse_cluster(raw, path, extends)


def parse_cluster(raw: Mapping[str, Any], path: Path, extends: str | None = None) -> Cluster:
    """Return the cluster that a file's mapping describes; its name is the file's stem."""
    problems = []
    if "name" in raw:
        problems.append(Problem("name", "is not needed: the file's name is the cluster's name; remove the key"))
    plain = {key: value for key, value in raw.items() if key != "name"}
    try:
        cluster = Cluster.model_validate({**plain, "name": path.stem})
    except ValidationError as error:
        raise invalid(path, "cluster", [*problems, *from_pydantic(error.errors(), Cluster)], extends) from None
    problems += _rules(cluster)
    if problems:
        raise invalid(path, "cluster", problems, extends)
    return cluster


def _rules(cluster: Cluster) -> list[Problem]:
    """Return what is wrong between keys that are fine each on its own."""
    problems = []
    if cluster.emulated:
        for key in ("network", "flops_per_gpu", "memory_gib_per_gpu"):
            if getattr(cluster, key) is None:
                problems.append(Problem(key, "is missing; emulated GPUs need it, step times are modelled from it"))
    if cluster.network:
        problems += _tiers(cluster.network.tiers, cluster.gpus)
    if isinstance(cluster.launcher, SlurmConfig):
        problems += _slurm(cluster.launcher, cluster)
    return problems + store_problems(cluster.store) + _environment(cluster) + _old_name(cluster)


def _tiers(tiers: tuple[Tier, ...], gpus: int) -> list[Problem]:
    sizes = [tier.gpus for tier in tiers]
    if sizes != sorted(set(sizes)):
        return [Problem("network.tiers", f"must ascend in gpus, not {', '.join(map(str, sizes))}")]
    if sizes and sizes[-1] < gpus:
        return [
            Problem("network.tiers", f"end at {sizes[-1]} GPUs but the cluster has {gpus}; add one of {gpus} or more")
        ]
    return []


def _environment(cluster: Cluster) -> list[Problem]:
    environment, problems = cluster.environment, []
    if environment.kind == "venv" and environment.venv is None:
        problems.append(Problem("environment.venv", "is missing; kind venv needs its folder"))
    contained = environment.kind in ("pyxis", "apptainer")
    if contained and environment.image is None:
        text = f"is missing; kind {environment.kind} needs an image by its digest, NAME@sha256:..."
        problems.append(Problem("environment.image", text))
    if not contained and environment.image is not None:
        text = f"is for kind pyxis or apptainer, and the kind is {environment.kind}"
        problems.append(Problem("environment.image", text))
    if not isinstance(cluster.launcher, SlurmConfig) and (contained or environment.modules):
        what = f"kind {environment.kind} works" if contained else "modules work"
        problems.append(Problem("environment", f"{what} with the launcher slurm only, and this one is local"))
    if environment.secrets:
        problems += _secrets(Path(environment.secrets.file).expanduser())
    return problems


def _slurm(launcher: SlurmConfig, cluster: Cluster) -> list[Problem]:
    problems = []
    if launcher.real_nodes is not None and not cluster.emulated:
        text = "is for emulated GPUs only; where they are real, every node trains: remove it"
        problems.append(Problem("launcher.real_nodes", text))
    return problems


_OLD_NAME = "NCCL_ASYNC_ERROR_HANDLING"


def _old_name(cluster: Cluster) -> list[Problem]:
    """Return where a variable is set that older guides recommend and that torch no longer means so."""
    around, launcher = cluster.environment, cluster.launcher
    lines = [(f"environment.variables.{name}", name) for name in around.variables]
    lines += [(f"environment.setup.{index}", line) for index, line in enumerate(around.setup)]
    if isinstance(launcher, SlurmConfig):
        lines += [(f"launcher.options.{index}", line) for index, line in enumerate(launcher.options)]
        lines += [(f"launcher.srun_options.{index}", line) for index, line in enumerate(launcher.srun_options)]
    text = (
        f"{_OLD_NAME} is an older name of TORCH_{_OLD_NAME}, whose default by now is better than the 1 that guides "
        "advise (3: a rank that failed ends without waiting for NCCL to clean up, which may hang); remove it"
    )
    return [Problem(where, text) for where, line in lines if _OLD_NAME in line.replace(f"TORCH_{_OLD_NAME}", "")]


def _secrets(file: Path) -> list[Problem]:
    where = "environment.secrets.file"
    if not file.is_absolute():
        return [
            Problem(where, f"must be absolute or begin with ~, since jobs start in other folders, not {str(file)!r}")
        ]
    if not file.is_file():
        return [Problem(where, f"{str(file)!r} does not exist; write NAME=value lines into it and `chmod 600` it")]
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        return [Problem(where, f"{str(file)!r} has mode {mode:04o}, so others may read it; `chmod 600` it")]
    return []
