"""The contract between the pipeline and any trainer: one file in, one file out, an exit code.

In: ``config.json`` (a :class:`TrainConfig`). Out: ``metrics.jsonl``, one JSON object a line, appended and
flushed whole. Exit 0 when the last step is done. No torch here, so that ``tasks`` may import it.

A line of ``metrics.jsonl`` has a ``kind``; a line without one is a step:

* ``header``      written once an attempt, first: who wrote what follows, and of each field whether it is
                  *real*, *measured*, *modelled*, or *synthetic*: of random tokens, so no evidence (``fields``)
* ``step``        one optimizer step; :data:`REQUIRED` must be there, the rest is optional
* ``held_out``    loss on the fixed held-out set; ``at`` is ``start | step | end``
* ``checkpoint``  a checkpoint became whole: ``step``, ``path``, ``purpose``, ``seconds``, ``bytes``, and
                  ``stall_seconds``, for which training waited; it may come after records of later steps
* ``stored``      a checkpoint is in the store: ``step``, ``seconds``, ``new_bytes``, ``stored_in``, ``replica_step``
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from training.config.compression import Compression
from training.config.data import Data, DataSource
from training.config.emulation import Emulation, Link
from training.config.errors import ConfigError, DataError
from training.config.keeping import Checkpointing, HeldOut, StoreOrders
from training.config.layout import Layout
from training.config.model import ModelShape
from training.config.optimizer import Optimizer
from training.config.precision import LossScale
from training.config.reading import build
from training.config.steps import PhaseName, Schedule, Span, Start

__all__ = [
    "Checkpointing", "Compression", "ConfigError", "Data", "DataError", "DataSource", "Emulation", "HeldOut", "Layout",
    "Link", "LossScale", "ModelShape", "Nature", "Optimizer", "PhaseName", "Schedule", "Span", "Start", "StoreOrders",
    "TrainConfig", "read_config",
]  # fmt: skip

CONFIG = "config.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
SCHEMA = 1

Nature = Literal["real", "measured", "modelled", "synthetic"]

REQUIRED = ("step", "tokens", "loss", "step_seconds")
OPTIONAL = (
    "phase",  # train | replay | canary | probe
    "attempt",  # number of the try that wrote the line
    "time",  # seconds since the epoch, when the step ended
    "batch",  # sequences in the step
    "grad_norm",  # global L2 norm before clipping
    "learning_rate",
    "loss_scale",  # factor that the step's fp16 gradients carried
    "skipped_steps",  # 1 where they overflowed, so that the weights stayed as they were; else 0
    "aux_loss",  # of a mixture of experts: mean balance loss of a token and layer, 1 where experts share equally
    "dropped_tokens",  # choices of an expert, of all layers, that found no place
    "gradient_noise_sequences",  # batch at which a gradient's noise weighs as much as its signal, smoothed
    # Phases of step_seconds, of the rank that records; together they are at most the step.
    "data_seconds",  # waiting for the step's samples
    "forward_seconds",
    "backward_seconds",
    "communication_seconds",  # exposed, not overlapped
    "optimizer_seconds",
    "wall_seconds",  # this machine's own seconds for the step, always measured
    "tokens_per_gpu_second",
    "checkpoint_age_seconds",  # since the state of the newest whole checkpoint of this attempt; measured
    "store_age_seconds",  # since the state of the newest checkpoint that this attempt put into the store; measured
    "replica_age_seconds",  # the same of the newest that is complete in the second region: the recovery point
    "memory_gib",  # peak of one GPU (modelled) or of one process (measured)
    "codec_seconds",  # of compressed gradients: encoding and decoding in this process; measured
    "compressed_bytes",  # that this process sent to others in their place; measured
)


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
    data: str | Data = "stdlib"  # a word is one source, all of its samples
    layout: Layout = Layout()
    compression: Compression | None = None  # of gradients between copies of the model; None: float32 as they are
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    loss_scale: LossScale = LossScale()  # of fp16
    optimizer: Optimizer = Optimizer()
    checkpointing: Checkpointing = Checkpointing()
    store: StoreOrders | None = None  # checkpoints go there as well; None: they lie in the stage's folder alone
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
        if value.get("schema") != SCHEMA:
            raise ConfigError(f"config.json has schema {value.get('schema')!r}; this trainer reads schema {SCHEMA}")
        read: TrainConfig = build(cls, value)
        return read


def read_config(stage_dir: Path) -> TrainConfig:
    """Read ``config.json`` of a stage folder; raise :class:`ConfigError` where it is missing or malformed."""
    path = Path(stage_dir) / CONFIG
    try:
        return TrainConfig.from_json(json.loads(path.read_text()))
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist; `launch` writes it before it starts a job") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
