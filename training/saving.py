"""Saving beside training: the state is copied while the next step computes, and written in the background.

Between `begin` and `staged` the state must not change: a forward and a backward pass change nothing of it, so the copy
costs the step only what it is late for the optimizer. Two saves never overlap. Collectives of the writing thread go
through a process group of their own: mixed with those of training they would meet the wrong partners.
"""

from __future__ import annotations

import shutil
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import save

from training import manifest
from training.checkpoint import Progress, identity
from training.config import CHECKPOINTS, TrainConfig
from training.manifest import Purpose
from training.processes import TrainingError, World

_WRITING = ".writing"
PATIENCE_SECONDS = 1.0  # for which a periodic save waits for the one before it; after that it is left out


@dataclass(frozen=True)
class Written:
    """Who wrote a checkpoint's state, and from what: all that its manifest says beside step and sums."""

    stage_dir: Path
    config: TrainConfig
    fingerprint: str
    data_state: Callable[[int], Mapping[str, Any]]  # of a cursor: how far each source has been read

    def folder(self, step: int) -> Path:
        """Return where the checkpoint of a step appears when it is whole."""
        return self.stage_dir / CHECKPOINTS / manifest.folder_name(step)

    def publish(self, writing: Path, progress: Progress, purpose: Purpose) -> manifest.Manifest:
        """Sum a written folder, give it its name, delete older periodic ones; return its manifest."""
        config = self.config
        written = manifest.write(
            writing,
            step=progress.step,
            tokens=progress.cursor * config.sequence_length,
            purpose=purpose,
            world=config.gpus,
            config_digest=manifest.digest_of(config.to_json()),
            extra=identity(config, self.fingerprint)
            | {"cursor": progress.cursor, "data": dict(self.data_state(progress.cursor))},
        )
        folder = self.folder(progress.step)
        manifest.publish(writing, folder)
        manifest.prune(folder.parent, config.checkpointing.keep)
        return written


@dataclass
class _Save:
    """One save under way."""

    progress: Progress
    purpose: Purpose
    said: Mapping[str, Any]
    began: float
    stall_seconds: float = 0.0
    copied: Future[None] = field(default_factory=Future)
    whole: Future[None] | None = None


class Saver:
    """Writes one job's checkpoints; every process calls every method, in the same order."""

    def __init__(self, written: Written, world: World, record: Callable[..., None]) -> None:
        """Start with nothing saved; ``record`` gets a checkpoint's record, in the first process, once it is whole."""
        self.written, self.world, self.record = written, world, record
        self._under_way: _Save | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._stager = DefaultStager(StagingOptions(False, False, False, False))
        self._group: dist.ProcessGroup | None = None
        self._last_whole: float | None = None
        if world.first:
            for left in written.folder(0).parent.glob(f".*{_WRITING}"):
                shutil.rmtree(left, ignore_errors=True)  # by a job that was killed
        # A job of one process has no process group and needs none; torch would warn at each save.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")

    def age(self) -> dict[str, float]:
        """Return the seconds since the state of this attempt's newest whole checkpoint; nothing before the first."""
        return {} if self._last_whole is None else {"checkpoint_age_seconds": time.monotonic() - self._last_whole}

    def begin(
        self, state: Mapping[str, Tensor], progress: Progress, purpose: Purpose, *, must: bool, **said: Any
    ) -> bool:
        """Start to save ``state``, which must not change before `staged` returned; whether it was started.

        Where the save before is still being written, one that ``must`` be there waits for it; another is left out, and
        says so: a slow store never stops training. ``said`` goes into the record.
        """
        began = time.monotonic()
        if not self._free(patience=None if must else PATIENCE_SECONDS):
            if self.world.first and self._under_way is not None:
                step, seconds = self._under_way.progress.step, began - self._under_way.began
                print(
                    f"training: no checkpoint of step {progress.step}: that of step {step} is being written since "
                    f"{seconds:.0f} s",
                    file=sys.stderr, flush=True,
                )  # fmt: skip
            return False
        if self._group is None and self.world.processes > 1:
            self._group = dist.new_group(backend="gloo")
        under_way = _Save(progress, purpose, said, began)
        ready = torch.cuda.current_stream().record_event() if self.world.device.type == "cuda" else None
        under_way.whole = self._thread.submit(self._write, under_way, state, ready)
        under_way.stall_seconds = time.monotonic() - began
        self._under_way = under_way
        return True

    def staged(self) -> None:
        """Return when the state may change again."""
        if self._under_way is not None and not self._under_way.copied.done():
            begin = time.monotonic()
            wait([self._under_way.copied])
            self._under_way.stall_seconds += time.monotonic() - begin

    def finish(self) -> None:
        """Return when what was begun is whole; raise TrainingError in all processes where it could not be."""
        self._free(patience=None)

    def _free(self, patience: float | None) -> bool:
        """Whether, within ``patience`` seconds, no process writes any more; raise TrainingError for one that failed."""
        if self._under_way is None:  # the same in every process
            return True
        whole = self._under_way.whole
        busy, failed = 0.0, ""
        if whole is not None:
            wait([whole], patience)
            busy = float(not whole.done())
            error = whole.exception() if whole.done() else None
            failed = f"{type(error).__name__}: {error}" if error else ""
        said = torch.tensor([busy, float(bool(failed))], dtype=torch.float64, device=self.world.device)
        self.world.sum(said)
        if said[1] > 0:
            step = self._under_way.progress.step
            why = failed or "another process says why"
            raise TrainingError(f"the checkpoint of step {step} could not be written: {why}")
        if said[0] > 0:
            return False
        self._under_way = None
        return True

    def _write(self, under_way: _Save, state: Mapping[str, Tensor], ready: Any) -> None:
        """In the thread: copy, then write, then make whole."""
        try:
            if ready is not None:
                ready.synchronize()
            copy: Any = self._stager.stage(dict(state))
        finally:
            under_way.copied.set_result(None)
        folder = self.written.folder(under_way.progress.step)
        writing = folder.with_name(f".{folder.name}{_WRITING}")
        if self.world.first:
            shutil.rmtree(writing, ignore_errors=True)
        if self._group is not None:
            dist.barrier(group=self._group)
        save(copy, checkpoint_id=writing, process_group=self._group, no_dist=self._group is None)
        if self.world.first:
            self._publish(under_way, writing)
        self._last_whole = under_way.began

    def _publish(self, under_way: _Save, writing: Path) -> None:
        progress, purpose = under_way.progress, under_way.purpose
        written = self.written.publish(writing, progress, purpose)
        self.record(
            "checkpoint",
            step=progress.step,
            tokens=written.tokens,
            path=f"{CHECKPOINTS}/{manifest.folder_name(progress.step)}",
            purpose=purpose,
            seconds=time.monotonic() - under_way.began,
            stall_seconds=under_way.stall_seconds,
            bytes=written.bytes,
            **under_way.said,
        )
