"""``scaleup checkpoints VERB``: what checkpoints a run has, where, whether they are whole, and how two differ."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

from tasks import checkpoints
from tasks.checkpoints import Listed
from tasks.errors import ScaleupError
from tasks.run import find_run, ladder_of
from tasks.stage_dir import StageDir


def stages_of(said: str, name: str | None) -> list[StageDir]:
    """Return one stage of a run, or all that were launched; raise ScaleupError for a name that it does not have."""
    run = find_run(said)
    names = [decided.name for decided in ladder_of(run).stages]
    if name is not None and name not in names:
        raise ScaleupError(f"{run.experiment}/{run.run_id} has no stage {name!r}; its stages are {', '.join(names)}")
    return [run.stage(each) for each in names if name in (None, each) and run.stage(each).path.exists()]


def ls(options: Namespace) -> int:
    """Print a line for each checkpoint in each place."""
    _print(one for stage in stages_of(options.run, options.stage) for one in checkpoints.listed(stage))
    return 0


def verify(options: Namespace) -> int:
    """Read every byte of every checkpoint; 1 where any is damaged."""
    wrong = 0
    for stage in stages_of(options.run, options.stage):
        for one in checkpoints.listed(stage):
            if options.step is not None and one.step != options.step:
                continue
            found = checkpoints.verify(stage, one)
            wrong += bool(found)
            print(f"{one.stage} step {one.step} {one.place}: {'whole' if not found else '; '.join(found)}", flush=True)
    return 1 if wrong else 0


def show(options: Namespace) -> int:
    """Print all that the manifest of one checkpoint says."""
    (stage,) = stages_of(options.run, options.stage) or [_none(options)]
    one = checkpoints.chosen(stage, options.step)
    facts = one.facts
    if facts is None:
        raise ScaleupError(one.damage or "cannot be read")
    told = {
        "address": one.address, "manifest_sha256": facts.digest, "step": facts.step, "tokens": facts.tokens,
        "purpose": facts.purpose, "world": facts.world, "layout": dict(facts.layout), "commit": facts.commit,
        "written": facts.time, "bytes": facts.bytes, "pinned": one.pinned, "extra": dict(facts.extra),
        "files": {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in facts.files.items()},
    }  # fmt: skip
    print(json.dumps(told, indent=1))
    return 0


def diff(options: Namespace) -> int:
    """Print in what two checkpoints of a stage differ."""
    (stage,) = stages_of(options.run, options.stage) or [_none(options)]
    before, after = (checkpoints.chosen(stage, step).facts for step in (options.step, options.to))
    if before is None or after is None:
        raise ScaleupError("one of them cannot be read")
    print("\n".join(checkpoints.differences(before, after)) or "they are the same, byte for byte")
    return 0


def export(options: Namespace) -> int:
    """Write a model's weights as safetensors, by a process that may load tensors."""
    (stage,) = stages_of(options.run, options.stage) or [_none(options)]
    with checkpoints.at_hand(stage, checkpoints.chosen(stage, options.step)) as folder:
        command = [sys.executable, "-m", "training.export", str(folder), "--out", str(Path(options.out).absolute())]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[1])
    if done.returncode:
        raise ScaleupError(done.stderr.strip().splitlines()[-1])
    said = json.loads(done.stdout)
    print(f"{said['out']}: {said['tensors']} tensors, {said['parameters']:,} parameters, of step {said['step']}")
    return 0


def _none(options: Namespace) -> StageDir:
    raise ScaleupError(f"{options.stage} was not launched yet, so it has no checkpoint")


def _print(found: Iterable[Listed]) -> None:
    print(f"{'stage':<10} {'step':>8} {'place':<8} {'purpose':<9} {'tokens':>14} {'MiB':>9} {'age':>9}  kept")
    for one in found:
        facts = one.facts
        if facts is None:
            print(f"{one.stage:<10} {one.step:>8} {one.place:<8} damaged: {one.damage}")
            continue
        age = f"{(time.time() - facts.time) / 60:,.0f} min"
        size = facts.bytes / 2**20
        print(
            f"{one.stage:<10} {one.step:>8} {one.place:<8} {facts.purpose:<9} {facts.tokens:>14,} {size:>9,.1f} "
            f"{age:>9}  {'pinned' if one.pinned else ''}".rstrip()
        )
