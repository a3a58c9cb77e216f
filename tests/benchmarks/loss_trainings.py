"""Small real trainings from one hand-over: the same recipe again, the batch doubled, the learning rate too high.

All start from the weights of one base training on Python's standard library, as the stages of a ladder start from one
hand-over. A seed decides the order of samples. One training takes seconds on one core, so a hundred are affordable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trained
from rich.progress import track

from training import manifest
from training.config import HeldOut, ModelShape, Schedule, Span, Start

LENGTH = 32  # tokens of a sequence
BATCH = 16
STEPS = 240
RATE = 4e-4
SHAPE = ModelShape(layers=2, hidden=32, heads=2, ffn=64, vocabulary=256)
# The base learns fast and then settles at the rate with which all go on: a rate that has just fallen would make the
# loss fall with it, and the curve's slope would say nothing of what tokens bring.
FAST = Span("train", 1, 1500, 64, 6e-3, Schedule("constant", 0, 30, 1500))
SETTLED = Span("train", 1501, 800, BATCH, RATE, Schedule("constant", 0, 0, 2300))
TOKENS = STEPS * BATCH * LENGTH
BASE_TOKENS = sum(span.steps * span.batch_sequences for span in (FAST, SETTLED)) * LENGTH


@dataclass(frozen=True)
class Recipe:
    """What one training does differently; tokens are the same in all."""

    name: str
    batch: int = BATCH
    rate: float = RATE
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Steps until the tokens are spent."""
        return STEPS * BATCH // self.batch


SAME = Recipe("same")
BFLOAT = Recipe("bf16", changes={"precision": "bf16"})
DOUBLED = Recipe("batch x2, rate x sqrt 2", 2 * BATCH, RATE * math.sqrt(2))
TOO_HIGH = Recipe("batch x2, rate 4 times too high", 2 * BATCH, 4 * RATE * math.sqrt(2))


@dataclass(frozen=True)
class Outcome:
    """What one training left: held-out rows and the loss of each step, after its start."""

    recipe: Recipe
    seed: int
    tokens: tuple[int, ...]
    held_out: tuple[float, ...]
    losses: tuple[float, ...]


def base(root: Path) -> Path:
    """Train the weights that all others start from; return the checkpoint's folder."""
    folder = _order(root / "base", FAST, SETTLED, seed=0)
    _run([folder])
    return manifest.whole(folder / "checkpoints")[-1].folder


def train(root: Path, start: Path, wanted: Sequence[tuple[Recipe, int]]) -> list[Outcome]:
    """Train each (recipe, seed) from the weights ``start``; shows how far it is."""
    folders = []
    for number, (recipe, seed) in enumerate(wanted):
        schedule = Schedule("constant", 0, 10 * BATCH // recipe.batch, recipe.steps)
        span = Span("train", 1, recipe.steps, recipe.batch, recipe.rate, schedule)
        begin = Start("weights", str(start))
        folders.append(_order(root / f"{number:03}", span, seed=seed, start=begin, **recipe.changes))
    for few in track(list(_parts(folders, 5)), description="trainings, five at a time"):
        _run(few)
    return [_outcome(folder, *what) for folder, what in zip(folders, wanted, strict=True)]


def _order(folder: Path, *spans: Span, **changes: Any) -> Path:
    settings = {"sequence_length": LENGTH, "model": SHAPE, "held_out": HeldOut(2048, TOKENS // 4), **changes}
    return trained.order(folder, *spans, gpus=8, data="stdlib", processes=1, **settings)


def _run(folders: Sequence[Path]) -> None:
    for folder, end in zip(folders, trained.run(*folders, timeout=900), strict=True):
        if end["code"] != 0:
            raise RuntimeError(f"{folder} ended with {end['code']}: {end['said'][-500:]}")


def _parts(folders: Sequence[Path], size: int) -> Iterator[Sequence[Path]]:
    for at in range(0, len(folders), size):
        yield folders[at : at + size]


def _outcome(folder: Path, recipe: Recipe, seed: int) -> Outcome:
    rows = [row for row in trained.records(folder, "held_out") if row["step"] > 0]
    losses = [record["loss"] for _, record in sorted(trained.steps(folder).items())]
    return Outcome(
        recipe,
        seed,
        tuple(BASE_TOKENS + row["tokens"] for row in rows),
        tuple(row["loss"] for row in rows),
        tuple(losses),
    )
