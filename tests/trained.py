"""Runs of the real trainer for tests: orders small enough for seconds, and deaths at named moments.

One process imports torch once and forks for each run, so a run costs its own steps alone. Deaths are real signals,
sent from inside at a moment that a test can name; nothing of the trainer is replaced.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training.config import (
    CHECKPOINTS,
    CONFIG,
    Checkpointing,
    Emulation,
    HeldOut,
    Layout,
    Link,
    ModelShape,
    Schedule,
    Span,
    TrainConfig,
)

PR_SET_CHILD_SUBREAPER = 36
SHAPE = ModelShape(layers=2, hidden=16, heads=2, ffn=24, vocabulary=256)
REAL = ModelShape(layers=32, hidden=4096, heads=32, ffn=11008, vocabulary=32000)
EMULATION = Emulation(
    recipe_model=REAL,
    recipe_sequence_length=4096,
    recipe_batch_sequences=64,
    recipe_shard=8,
    recipe_tensor=1,
    recipe_pipeline=1,
    recipe_micro_batch_sequences=1,
    gpus_per_node=8,
    flops_per_gpu=4e14,
    memory_gib_per_gpu=80.0,
    inside_node=Link(5.0, 450.0),
    between_nodes=Link(10.0, 50.0),
    tiers=((64, 1.0), (512, 0.95), (1024, 0.9)),
    overlap=0.7,
    launch_sd=0.005,
    step_sd=0.01,
    autocorrelation=0.3,
    spike_rate=0.01,
    spike_factor=1.5,
    seed=3,
    recipe_activation_checkpointing=True,
)


def span(first: int, steps: int, batch: int, phase: str = "train", rate: float = 3e-3) -> Span:
    return Span(phase, first, steps, batch, rate, Schedule("cosine", first - 1, 3, 60))  # type: ignore[arg-type]


def corpus(folder: Path) -> Path:
    """A folder of text like a library's source, much smaller."""
    if not folder.exists():
        folder.mkdir(parents=True)
        for number in range(60):
            lines = (f"def f{n}(x):\n    return x * {n * number % 97} + {n}\n" for n in range(60))
            (folder / f"module_{number}.py").write_text("".join(lines))
    return folder


def order(folder: Path, *spans: Span, gpus: int = 8, **changes: Any) -> Path:
    """Write a stage folder's config.json; what is not said is small and emulated on two processes."""
    settings: dict[str, Any] = {
        "data": str(corpus(folder.parent / "corpus")),
        "processes": 2,
        "emulation": EMULATION,
        "held_out": HeldOut(16, None),
        "checkpointing": Checkpointing(every_steps=1000, keep=2),
        "sequence_length": 16,
        "model": SHAPE,
        "seed": 11,
    }
    settings |= changes
    config = TrainConfig("small", "run", f"gpus_{gpus}", 1, gpus, spans=spans, **settings)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.to_json()))
    return folder


def run(*scenarios: tuple[Path, str] | Path, timeout: float = 120) -> list[dict[str, Any]]:
    """Run stage folders one after the other, each with the death it is to die ('' for none).

    Returns of each: ``code`` as subprocess gives it, ``seconds`` until the job ended, ``orphan_seconds`` until the
    last process of it was gone.
    """
    pairs = [(str(s[0]), s[1]) if isinstance(s, tuple) else (str(s), "") for s in scenarios]
    command = [sys.executable, __file__, json.dumps(pairs)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    if done.returncode:
        raise RuntimeError(f"{done.stdout}\n{done.stderr}")
    ends: list[dict[str, Any]] = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("ended")]
    for end in ends:
        end["said"] = done.stderr
    return ends


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """All records of one kind, in the order they were written."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def steps(folder: Path) -> dict[int, dict[str, Any]]:
    """The last record of each step."""
    return {record["step"]: record for record in records(folder, "step")}


def tensors(checkpoint: Path) -> dict[str, Any]:
    """Every tensor of a checkpoint by its name, whoever wrote which part."""
    import torch
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    index = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    state = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in index.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells that there is no process group
        load(state, checkpoint_id=checkpoint, no_dist=True)
    return state


def await_saved(stage_dir: Path, step: int) -> None:
    """Return when the newest checkpoint due by ``step`` is whole."""
    from training import manifest

    every = json.loads((stage_dir / CONFIG).read_text())["checkpointing"]["every_steps"]
    due = stage_dir / CHECKPOINTS / manifest.folder_name(step // every * every)
    end = time.monotonic() + 30
    while step >= every and not due.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{due} did not appear")
        time.sleep(0.002)


def die_at(moment: str, stage_dir: Path) -> None:
    """Arrange for a death: ``kind:step``, ``kind`` one of those below."""
    from training import loop, manifest, saving

    kind, step = moment.split(":")
    main = os.getpid()
    record_step, write, publish = loop.Recorder.step, manifest.write, manifest.publish

    def kill_all() -> None:
        os.kill(main, signal.SIGKILL)
        signal.pause()

    def after_step(self: Any, span: Any, progress: Any, *args: Any, **values: Any) -> None:
        record_step(self, span, progress, *args, **values)
        if progress.step != int(step):
            return
        await_saved(stage_dir, progress.step - 1)  # they are written in the background, and steps are short here
        if kind == "worker" and self.records is None:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.records is None:
            return
        if kind == "step":
            kill_all()
        if kind == "torn":
            os.write(self.records._file, b'{"kind": "step", "step": 2')
            kill_all()
        if kind in ("SIGTERM", "SIGUSR1"):
            os.kill(main, signal.Signals[kind])

    def before_manifest(folder: Path, **values: Any) -> Any:
        if kind == "unsummed" and values["step"] == int(step):
            kill_all()
        return write(folder, **values)

    def after_publish(temporary: Path, final: Path) -> Path:
        publish(temporary, final)
        if kind == "unrecorded" and final.name == manifest.folder_name(int(step)):
            kill_all()
        return final

    loop.Recorder.step = after_step  # type: ignore[method-assign]
    saving.manifest.write = before_manifest  # type: ignore[assignment]
    saving.manifest.publish = after_publish


def _serve(pairs: list[tuple[str, str]]) -> None:
    from training import train

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans become ours, so we see whether there are any
    if any(json.loads((Path(folder) / CONFIG).read_text())["layout"] != asdict(Layout()) for folder, _ in pairs):
        from training import parallel  # noqa: F401, once for all of them: 2 s each
    for folder, moment in pairs:
        begin = time.monotonic()
        child = os.fork()
        if child == 0:
            os.setsid()
            if moment:
                die_at(moment, Path(folder))
            try:
                code = train.main([folder])
            except SystemExit as error:
                code = int(error.code or 0)
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        ended = time.monotonic()
        try:
            while True:
                os.waitpid(-child, 0)
        except ChildProcessError:
            gone = time.monotonic()
        print(
            "ended" + json.dumps({"code": code, "seconds": ended - begin, "orphan_seconds": gone - ended}), flush=True
        )


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
