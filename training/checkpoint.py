"""Checkpoints by torch.distributed.checkpoint: everything the next step depends on, whole or not there.

Model, both moments of the optimizer, step, data cursor and generator state are all tensors under flat names, so a
checkpoint loads on any number of processes and holds no pickled objects but torch's own index. That index *is*
unpickled, so only folders whose manifest verifies are opened; sums show damage, not who wrote a folder.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from training import manifest
from training.compression import CompressedSum
from training.config import CHECKPOINTS, ConfigError, Data, ModelShape, Start, TrainConfig
from training.config.data import skipped_otherwise
from training.manifest import Manifest
from training.processes import World
from training.restore import NOTHING, Restored


@dataclass
class Progress:
    """Where a job is: the last step done, and the samples taken from the stream so far."""

    step: int = 0
    cursor: int = 0


@dataclass(frozen=True)
class Resume:
    """What a job begins from: a checkpoint of its own, the one its config names, or nothing."""

    checkpoint: Manifest | None = None
    own: bool = False  # this stage wrote it, so the stage is under way
    weights_only: bool = False
    unsound: tuple[str, ...] = ()  # newer checkpoints that did not verify, and why
    place: str | None = None  # where it was found, if stores were asked
    lost_steps: int = 0  # between the newest checkpoint that was named anywhere and this one

    def to_json(self) -> dict[str, Any]:
        """Return what the header record says of it."""
        found = self.checkpoint
        return {
            "resumed_from": {"step": found.step, "path": str(found.folder), "own": self.own} if found else None,
            "unsound_checkpoints": list(self.unsound),
            "resumed_place": self.place,
            "lost_steps": self.lost_steps,
        }


def find(stage_dir: Path, config: TrainConfig, fingerprint: str, restored: Restored = NOTHING) -> Resume:
    """Return the newest sound checkpoint of the stage, else its start; raise ConfigError if that one is not usable."""
    unsound = list(restored.passed_over)
    for found in reversed(manifest.whole(stage_dir / CHECKPOINTS)):
        summed = found.folder == restored.verified
        problems = ([] if summed else manifest.verify(found.folder)) or _mismatches(found, config, fingerprint)
        if not problems:
            lost = restored.lost_steps if summed else 0
            place = restored.place if summed else None
            return Resume(found, own=True, unsound=tuple(unsound), place=place, lost_steps=lost)
        unsound += problems
    start = config.start
    if start.kind == "scratch":
        return Resume(unsound=tuple(unsound))
    return dataclasses.replace(_named(start, config, fingerprint), unsound=tuple(unsound))


def _named(start: Start, config: TrainConfig, fingerprint: str) -> Resume:
    if start.checkpoint is None:
        raise ConfigError(f"start: kind {start.kind!r} needs a checkpoint, and config.json names none")
    folder = Path(start.checkpoint)
    if problems := manifest.verify(folder):
        raise ConfigError(f"start.checkpoint is not sound: {'; '.join(problems)}")
    found = manifest.read(folder)
    weights_only = start.kind == "weights"
    problems = _mismatches(found, config, fingerprint, weights_only)
    if not weights_only and found.step != start.step:
        problems.append(f"{folder} is of step {found.step}, the stage starts after step {start.step}")
    if problems:
        raise ConfigError(f"start.checkpoint does not fit: {'; '.join(problems)}")
    return Resume(found, weights_only=weights_only)


def identity(config: TrainConfig, fingerprint: str) -> dict[str, Any]:
    """Return what must be the same for a job to go on from a checkpoint exactly."""
    return {
        "model": dataclasses.asdict(config.model),
        "sequence_length": config.sequence_length,
        "seed": config.seed,
        "fingerprint": fingerprint,
        "skip_samples": [list(skipped) for skipped in Data.of(config.data).skip_samples],
    }


def _mismatches(found: Manifest, config: TrainConfig, fingerprint: str, weights_only: bool = False) -> list[str]:
    wanted = identity(config, fingerprint)
    had = {**found.extra, "model": _with_defaults(found.extra.get("model"))}
    names = ["model"] if weights_only else [name for name in wanted if name != "skip_samples"]
    skips = None if weights_only else _skipped_otherwise(found, config)
    return [f"{found.folder} cannot go on: {skips}"] * bool(skips) + [
        f"{found.folder} was written with {name} {had.get(name)!r}, this stage has {wanted[name]!r}"
        for name in names
        if had.get(name) != wanted[name]
    ]


def _with_defaults(model: Any) -> Any:
    """Return a shape as an older checkpoint names it with the keys that did not exist then, as they were all along."""
    optional = {f.name: f.default for f in dataclasses.fields(ModelShape) if f.default is not dataclasses.MISSING}
    return optional | model if isinstance(model, dict) else model


def _skipped_otherwise(found: Manifest, config: TrainConfig) -> str | None:
    """Say which samples behind a checkpoint the orders leave out otherwise than it did; what lies ahead may change."""
    was = tuple((first, end) for first, end in found.extra.get("skip_samples", []))
    return skipped_otherwise(was, Data.of(config.data).skip_samples, found.extra.get("cursor", 0))


@dataclass(frozen=True)
class State:
    """One job's state, gathered for saving and put in place."""

    tensors: Mapping[str, Tensor]  # all that a step depends on, but for those below, step, cursor and generator state
    world: World
    errors: CompressedSum | None = None  # of compressed gradients

    def load(self, resume: Resume) -> Progress:
        """Put a checkpoint's tensors in place and return how far it had come; without one, the very beginning."""
        if resume.checkpoint is None:
            return Progress()
        progress = Progress()
        state = self._named(progress)
        if self.errors and self.errors.kept:
            state |= self.errors.state()
        if resume.weights_only:
            state = {name: tensor for name, tensor in state.items() if name.startswith("model.")}
        if lacks := sorted(state.keys() - shapes(resume.checkpoint.folder).keys()):
            raise ConfigError(
                f"{resume.checkpoint.folder} has no {lacks[0]} ({len(lacks)} tensors of {len(state)} are missing): "
                "another version wrote it, and this one cannot go on from it"
            )
        with _alone_is_fine():
            load(state, checkpoint_id=resume.checkpoint.folder, no_dist=self.world.processes == 1)
        if resume.weights_only:
            return progress
        torch.set_rng_state(state["rng"])
        return Progress(int(state["step"]), int(state["cursor"]))

    def gather(self, progress: Progress) -> dict[str, Tensor]:
        """Return every tensor of a checkpoint by its name there, for saving beside the next forward and backward."""
        # Gradients are sent during a backward pass, so their errors change in it, and are copied before.
        errors = self.errors.state() if self.errors else {}
        return self._named(progress) | {name: tensor.clone() for name, tensor in errors.items()}

    def _named(self, progress: Progress) -> dict[str, Tensor]:
        """Return what a checkpoint always has; loading writes into these very tensors."""
        place = {"step": torch.tensor(progress.step), "cursor": torch.tensor(progress.cursor)}
        return {**self.tensors, **place, "rng": torch.get_rng_state()}


def shapes(folder: Path) -> dict[str, torch.Size]:
    """Return the shape of every tensor in a checkpoint, by its name there."""
    stored = FileSystemReader(folder).read_metadata().state_dict_metadata
    return {name: found.size for name, found in stored.items() if isinstance(found, TensorStorageMetadata)}


def weights(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's parameters under the names that they have in a checkpoint."""
    return {f"model.{name}": parameter.detach() for name, parameter in parameters.items()}


@contextmanager
def _alone_is_fine() -> Iterator[None]:
    """Keep torch from warning that a job of one process has no process group: it needs none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield
