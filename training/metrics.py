"""``metrics.jsonl``: one JSON object a line, written whole, with a header that says what kind of number each is."""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from training import step_time
from training.config import SCHEMA, Nature, TrainConfig
from training.data import Dataset

_REAL = ("step", "tokens", "loss", "batch", "grad_norm", "learning_rate", "phase", "held_out_loss",
         "loss_scale", "skipped_steps", "gradient_noise_sequences", "aux_loss", "dropped_tokens")  # fmt: skip
_PHASES = ("data_seconds", "forward_seconds", "backward_seconds", "communication_seconds", "optimizer_seconds")
_MEASURED = ("wall_seconds", "time", "checkpoint_age_seconds", "store_age_seconds", "replica_age_seconds",
             "codec_seconds", "compressed_bytes")  # fmt: skip
_TIMES = ("step_seconds", *_PHASES, "tokens_per_gpu_second", "memory_gib")


class Records:
    """Appends to ``metrics.jsonl``. A line is one write, so a reader sees it whole or not at all."""

    def __init__(self, path: Path, attempt: int) -> None:
        """Open the file; what a killed predecessor left of a line is cut off."""
        self.attempt = attempt
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        content = path.read_bytes()
        os.ftruncate(self._file, content.rfind(b"\n") + 1)

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append one record; numbers that JSON does not have (NaN, infinity) become null."""
        plain = {"kind": kind, **values, "attempt": self.attempt, "time": time.time()}
        line = json.dumps({key: _finite(value) for key, value in plain.items()}, allow_nan=False) + "\n"
        data = line.encode()
        while data:
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        """Make everything durable and close."""
        os.fsync(self._file)
        os.close(self._file)


def natures(emulated: bool, synthetic: bool = False) -> dict[str, Nature]:
    """Return of each field whether it is real, measured, modelled, or of synthetic samples."""
    times: Nature = "modelled" if emulated else "measured"
    fields: dict[str, Nature] = dict.fromkeys(_REAL, "real")
    measured: dict[str, Nature] = dict.fromkeys(_MEASURED, "measured")
    learnt: dict[str, Nature] = dict.fromkeys(("loss", "grad_norm", "held_out_loss"), "synthetic") if synthetic else {}
    return fields | dict.fromkeys(_TIMES, times) | measured | learnt


def header(config: TrainConfig, dataset: Dataset, processes: int, resumed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first record of an attempt: who writes what follows, from what, and what its numbers are."""
    emulation = config.emulation
    return {
        "schema": SCHEMA,
        "trainer": "scaleup",
        "experiment": config.experiment,
        "run_id": config.run_id,
        "stage": config.stage,
        "gpus": config.gpus,
        "processes": processes,
        "reduction": config.reduction,
        "emulated": emulation is not None,
        "seed": config.seed,
        "parameters": config.model.parameters,
        "data": config.to_json()["data"],
        "fingerprint": dataset.fingerprint,
        "data_files": dataset.files,
        "data_tokens": dataset.tokens,
        "fields": natures(emulation is not None, dataset.synthetic),
        "modelled": {"seed": emulation.seed, "formula": step_time.FORMULA} if emulation else None,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        **resumed,
    }


def step_record(
    config: TrainConfig, step: int, batch: int, measured: Mapping[str, float], attempt: int
) -> dict[str, Any]:
    """Return a step's times and memory: this machine's own, or those modelled for the GPUs it stands in for."""
    wall = measured["wall"]
    if config.emulation is None:
        seconds = {name: measured.get(name.removesuffix("_seconds"), 0.0) for name in _PHASES}
        total, tokens, memory = wall, batch * config.sequence_length, peak_memory_gib()
    else:
        modelled = step_time.drawn(config.emulation, config.gpus, attempt, step)
        seconds = {name: getattr(modelled, name.removesuffix("_seconds")) for name in _PHASES}
        total, memory = modelled.total, step_time.memory_gib(config.emulation, config.gpus)
        tokens = config.emulation.recipe_batch_sequences * config.emulation.recipe_sequence_length
    return {
        "step_seconds": total,
        **seconds,
        "wall_seconds": wall,
        "tokens_per_gpu_second": tokens / config.gpus / total,
        "memory_gib": memory,
    }


def peak_memory_gib() -> float:
    """Return the most memory that this process has had: of its GPU where it computes on one, else resident."""
    if torch.cuda.is_available() and (used := torch.cuda.max_memory_allocated()):
        return used / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**30


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
