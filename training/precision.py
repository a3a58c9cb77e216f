"""Which precision the matrices multiply in; weights, moments and sums stay float32 or wider."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from training.config import ConfigError


def refuse_unknown(precision: str) -> None:
    """Raise ConfigError for a precision that this trainer cannot train in."""
    if precision == "fp16":
        raise ConfigError("precision: fp16 needs loss scaling, which does not exist here yet; use bf16 or float32")
    if precision not in ("float32", "bf16"):
        raise ConfigError(f"precision: {precision!r} is none of float32, bf16, fp16")


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context for forward passes. bf16 on a CPU without AMX is right but three times slower."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()
