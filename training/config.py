"""The contract between the pipeline and any trainer: one file in, one file out, an exit code.

In: ``config.json`` (a :class:`TrainConfig`). Out: ``metrics.jsonl``, one JSON object a line, appended and
flushed whole. Exit 0 when the last step is done. No torch here, so that ``tasks`` may import it.

A line of ``metrics.jsonl`` has a ``kind``; a line without one is a step:

* ``header``      written once an attempt, first: who wrote what follows, and of each field whether it is
                  *real*, *measured* or *modelled* (``fields``)
* ``step``        one optimizer step; :data:`REQUIRED` must be there, the rest is optional
* ``held_out``    loss on the fixed held-out set; ``at`` is ``start | step | end``
* ``checkpoint``  a checkpoint became whole: ``step``, ``path``, ``purpose``, ``seconds``, ``bytes``
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

CONFIG = "config.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
SCHEMA = 1

PhaseName = Literal["train", "replay", "canary", "probe"]
Nature = Literal["real", "measured", "modelled"]

REQUIRED = ("step", "tokens", "loss", "step_seconds")
OPTIONAL = (
    "phase",  # train | replay | canary | probe
    "attempt",  # number of the try that wrote the line
    "time",  # seconds since the epoch, when the step ended
    "batch",  # sequences in the step
    "grad_norm",  # global L2 norm before clipping
    "learning_rate",
    # Phases of step_seconds, of the rank that records; together they are at most the step.
    "data_seconds",  # waiting for the step's samples
    "forward_seconds",
    "backward_seconds",
    "communication_seconds",  # exposed, not overlapped
    "optimizer_seconds",
    "wall_seconds",  # this machine's own seconds for the step, always measured
    "tokens_per_gpu_second",
    "memory_gib",  # peak of one GPU (modelled) or of one process (measured)
)


class ConfigError(ValueError):
    """``config.json`` does not say what a trainer needs; the message names the key and the value."""


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer: pre-norm, RoPE, SwiGLU, tied embeddings, no biases."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """Trainable parameters: embedding (tied) + per layer 4 h^2 attention, 3 h f SwiGLU, 2 h norms + final norm."""
        h = self.hidden
        return self.vocabulary * h + self.layers * (4 * h * h + 3 * h * self.ffn + 2 * h) + h

    def flops_per_token(self, sequence_length: int) -> float:
        """Forward and backward FLOPs a token: 6 N + 12 L h s (Chowdhery et al. 2022, PaLM, appendix B)."""
        return 6.0 * self.parameters + 12.0 * self.layers * self.hidden * sequence_length


@dataclass(frozen=True)
class Schedule:
    """Shape of the learning rate over a stage: linear warm-up, then constant, or cosine down to ``floor``."""

    kind: Literal["constant", "cosine"] = "constant"
    start_step: int = 0
    warmup_steps: int = 0
    total_steps: int = 1
    floor: float = 0.1

    def factor(self, step: int) -> float:
        """Factor on the peak learning rate at ``step`` (steps count from 1; ``start_step`` is the last one before)."""
        done = step - self.start_step
        if done <= self.warmup_steps:
            return done / self.warmup_steps if self.warmup_steps else 1.0
        if self.kind == "constant":
            return 1.0
        part = min(1.0, (done - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * part))


@dataclass(frozen=True)
class Span:
    """Consecutive steps of one phase with one batch: steps ``first_step .. first_step + steps - 1`` (from 1)."""

    phase: PhaseName
    first_step: int
    steps: int
    batch_sequences: int
    learning_rate: float
    schedule: Schedule

    @property
    def last_step(self) -> int:
        """Number of the span's last step."""
        return self.first_step + self.steps - 1


@dataclass(frozen=True)
class Start:
    """Where the weights come from; ``step`` is the last one that the checkpoint has done (0 for scratch)."""

    kind: Literal["scratch", "continue", "weights"] = "scratch"
    checkpoint: str | None = None
    step: int = 0


@dataclass(frozen=True)
class Optimizer:
    """AdamW with decoupled decay; norms and embeddings are not decayed; ``clip`` bounds the global gradient norm."""

    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0


@dataclass(frozen=True)
class Checkpointing:
    """When checkpoints are written beside those at the hand-over and at the end, and how many are kept."""

    every_steps: int = 1000
    keep: int = 3


@dataclass(frozen=True)
class HeldOut:
    """The fixed held-out set: how many sequences, and how often it is evaluated between start and end."""

    sequences: int = 256
    every_tokens: int | None = None


@dataclass(frozen=True)
class Link:
    """One tier of a network as a GPU sees it: Hockney's T = latency + bytes / bandwidth."""

    latency_us: float
    gbytes_per_second: float


@dataclass(frozen=True)
class Emulation:
    """What stands in for GPUs: how virtual ranks run here, and what the step time is modelled for and from.

    ``recipe`` is the real recipe (its shape, sequence length, batch of this stage, layout); ``cluster`` what a GPU
    and its network would do. Every number drawn comes from ``seed``.
    """

    recipe_model: ModelShape
    recipe_sequence_length: int
    recipe_batch_sequences: int
    recipe_shard: int  # GPUs that share one copy of the weights (FSDP inside), a divisor of the GPUs
    recipe_tensor: int
    recipe_pipeline: int
    recipe_micro_batch_sequences: int
    gpus_per_node: int
    flops_per_gpu: float  # FLOP/s that a GPU reaches on this kind of model
    memory_gib_per_gpu: float
    inside_node: Link
    between_nodes: Link
    tiers: tuple[tuple[int, float], ...]  # (GPUs up to which it holds, factor on the bandwidth between nodes)
    overlap: float  # part of the compute time behind which communication hides
    launch_sd: float  # relative standard deviation from launch to launch
    step_sd: float  # relative standard deviation of a step
    autocorrelation: float  # AR(1) coefficient of the step noise
    spike_rate: float  # chance that a step is a spike
    spike_factor: float  # how many times longer a spiked step takes
    seed: int
    recipe_activation_checkpointing: bool = False  # activations are computed again in the backward pass


@dataclass(frozen=True)
class TrainConfig:
    """Everything a trainer needs to know, and nothing of pipelines, gates or clusters' launch commands."""

    experiment: str
    run_id: str
    stage: str
    attempt: int
    gpus: int
    seed: int
    model: ModelShape
    sequence_length: int
    spans: tuple[Span, ...]
    start: Start = Start()
    hand_over_step: int | None = None  # write a checkpoint of purpose hand_over after this step
    data: str = "stdlib"
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    optimizer: Optimizer = Optimizer()
    checkpointing: Checkpointing = Checkpointing()
    held_out: HeldOut = HeldOut()
    processes: int | None = None  # real processes; fewer than ``gpus`` means virtual ranks; None: one a GPU,
    # but where GPUs are emulated one a core, at most two
    reduction: Literal["batched", "exact"] = "batched"
    emulation: Emulation | None = None
    schema: int = SCHEMA
    extra: Mapping[str, Any] = field(default_factory=dict)  # a foreign trainer's own settings, passed through

    @property
    def last_step(self) -> int:
        """The step after which the job is done."""
        return self.spans[-1].last_step

    def to_json(self) -> dict[str, Any]:
        """Return the plain dictionary that ``config.json`` holds."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TrainConfig:
        """Read a dictionary as :meth:`to_json` made it; raise :class:`ConfigError` naming what is wrong."""
        try:
            plain = dict(value)
            if plain.get("schema") != SCHEMA:
                raise ConfigError(f"config.json has schema {plain.get('schema')!r}; this trainer reads schema {SCHEMA}")
            plain["model"] = ModelShape(**plain["model"])
            plain["spans"] = tuple(Span(**{**s, "schedule": Schedule(**s["schedule"])}) for s in plain["spans"])
            plain["start"] = Start(**plain["start"])
            optimizer = dict(plain["optimizer"])
            optimizer["betas"] = tuple(optimizer["betas"])
            plain["optimizer"] = Optimizer(**optimizer)
            plain["checkpointing"] = Checkpointing(**plain["checkpointing"])
            plain["held_out"] = HeldOut(**plain["held_out"])
            if plain.get("emulation") is not None:
                plain["emulation"] = _emulation(plain["emulation"])
            return cls(**plain)
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"config.json: {type(error).__name__}: {error}") from error


def _emulation(value: Mapping[str, Any]) -> Emulation:
    plain = dict(value)
    plain["recipe_model"] = ModelShape(**plain["recipe_model"])
    plain["inside_node"] = Link(**plain["inside_node"])
    plain["between_nodes"] = Link(**plain["between_nodes"])
    plain["tiers"] = tuple((int(gpus), float(factor)) for gpus, factor in plain["tiers"])
    return Emulation(**plain)


def read_config(stage_dir: Path) -> TrainConfig:
    """Read ``config.json`` of a stage folder; raise :class:`ConfigError` where it is missing or malformed."""
    path = Path(stage_dir) / CONFIG
    try:
        return TrainConfig.from_json(json.loads(path.read_text()))
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist; `launch` writes it before it starts a job") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
