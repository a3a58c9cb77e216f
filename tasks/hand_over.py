"""The checkpoint that a stage hands over: found, given a manifest, and evaluated where nobody vouches for it."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.errors import CheckpointUnsound
from tasks.launch import fill_in, placeholders, require_job
from tasks.launchers.secret_file import SecretsUnusable
from tasks.launchers.surroundings import run_here
from tasks.plan import StagePlan
from tasks.records import Metrics, read_metrics
from tasks.stage_dir import StageDir, read_json
from training import manifest

_COMMAND_SECONDS = 3600.0  # an optional command of a trainer that takes longer hangs
_SHOWN_LINES = 5


def checkpoint(stage: StageDir, decided: StagePlan) -> manifest.Manifest:
    """Return what this stage hands over, sound; raise CheckpointUnsound."""
    step = decided.last_step if decided.hand_over_step is None else decided.hand_over_step
    ours = [found for found in manifest.whole(stage.checkpoints) if found.step == step]
    folder = ours[-1].folder if ours else _theirs(stage, decided, step)
    problems = manifest.verify(folder)
    if problems:
        raise CheckpointUnsound(f"{stage.name} cannot be promoted: {'; '.join(problems)}")
    return manifest.read(folder)


def evaluated(stage: StageDir, decided: StagePlan, found: manifest.Manifest) -> dict[str, Any] | None:
    """Return loss and sequences of the checkpoint by the trainer's own ``evaluate``, or None where that is not needed.

    It is where the trainer wrote no manifest, so that nothing else shows that the checkpoint can be loaded, or no
    held-out loss at its step, which the next stage's start is compared with. Raises CheckpointUnsound.
    """
    command = decided.trainer.evaluate
    vouched_for = found.folder.parent == stage.checkpoints
    recorded = bool((read_metrics(stage.metrics).held_out["step"] == found.step).any())
    if command is None or (vouched_for and recorded):
        return None
    entry = found.extra.get("entry")
    path = found.folder / entry if entry else found.folder
    rows = _ask(stage, decided, command, "evaluate", {"{checkpoint}": str(path)})
    said = rows[-1] if rows else {}
    loss, sequences = said.get("loss"), said.get("sequences")
    if isinstance(loss, bool) or not isinstance(loss, int | float) or not math.isfinite(loss):
        raise CheckpointUnsound(f"{stage.name} cannot be promoted: the held-out loss of {path} is {loss!r}, no number")
    if isinstance(sequences, bool) or not isinstance(sequences, int) or sequences < 1:
        raise CheckpointUnsound(
            f"{stage.name} cannot be promoted: its trainer's evaluate says sequences: {sequences!r}; it must be on how "
            "many the held-out loss was computed"
        )
    return {"loss": float(loss), "sequences": sequences}


def _theirs(stage: StageDir, decided: StagePlan, step: int) -> Path:
    """Return the folder with a manifest that we made of a foreign trainer's checkpoint."""
    metrics = read_metrics(stage.metrics)
    rows = metrics.checkpoints[metrics.checkpoints["step"] == step]
    listed = _listed(stage, decided) if not len(rows) and decided.trainer.checkpoints else {}
    if not len(rows) and step not in listed:
        there = sorted({*(m.step for m in manifest.whole(stage.checkpoints)), *metrics.checkpoints["step"], *listed})
        raise CheckpointUnsound(_none_there(stage, decided, step, there))
    source = stage.path / (str(rows.iloc[-1]["path"]) if len(rows) else listed[step])
    if not source.exists():
        raise CheckpointUnsound(f"{stage.name}: its trainer recorded a checkpoint at {source}; nothing is there")
    return _with_manifest(stage, decided, source, step=step, tokens=_tokens(metrics, decided, step))


def _none_there(stage: StageDir, decided: StagePlan, step: int, there: Sequence[int]) -> str:
    listed = f"whole are those of steps {', '.join(map(str, there))}" if there else "there is none"
    can = decided.trainer.can("checkpoints")
    advice = "" if can else "; a trainer without the capability checkpoints hands nothing over"
    return f"{stage.name} has no {_purpose(decided)} checkpoint of step {step}: {listed}{advice}"


def _purpose(decided: StagePlan) -> manifest.Purpose:
    return "final" if decided.hand_over_step is None else "hand_over"


def _tokens(metrics: Metrics, decided: StagePlan, step: int) -> int:
    counted = metrics.steps[metrics.steps["step"] == step]["tokens"]
    return int(counted.iloc[-1]) if len(counted) else decided.tokens_first


def _listed(stage: StageDir, decided: StagePlan) -> dict[int, str]:
    """Return step and path of each checkpoint that the trainer's own command calls whole."""
    found = {}
    for row in _ask(stage, decided, decided.trainer.checkpoints or (), "checkpoints", {}):
        step, path, whole = row.get("step"), row.get("path"), row.get("whole")
        if isinstance(step, bool) or not isinstance(step, int) or not isinstance(path, str) or not path:
            raise CheckpointUnsound(
                f"{stage.name}: its trainer's command checkpoints printed {json.dumps(row)}; a row is "
                '{"step": 30, "path": "...", "whole": true}'
            )
        if whole is True:
            found[step] = path
    return found


def _ask(
    stage: StageDir, decided: StagePlan, command: tuple[str, ...], name: str, more: dict[str, str]
) -> list[dict[str, Any]]:
    """Run an optional command of the trainer here, in its job's surroundings; return the JSON objects that it printed.

    Lines that do not begin with a brace are taken for what libraries print.
    """
    filled = fill_in(command, placeholders(stage, decided) | more)
    said = f"{stage.name}: its trainer's command {name} ({' '.join(filled)})"
    try:
        done = run_here(require_job(stage), filled, _COMMAND_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise CheckpointUnsound(f"{said} had no answer after {_COMMAND_SECONDS / 3600:g} h") from error
    except (OSError, SecretsUnusable) as error:
        raise CheckpointUnsound(f"{said} could not be started: {error}") from error
    if done.returncode:
        last = "".join(f"\n  {line}" for line in (done.stderr or done.stdout).splitlines()[-_SHOWN_LINES:])
        raise CheckpointUnsound(f"{said} ended with exit code {done.returncode}; it said:{last}")
    try:
        return [dict(json.loads(line)) for line in done.stdout.splitlines() if line.lstrip().startswith("{")]
    except ValueError as error:
        raise CheckpointUnsound(f"{said} printed a line that is no JSON object: {error}") from error


def _with_manifest(stage: StageDir, decided: StagePlan, source: Path, *, step: int, tokens: int) -> Path:
    """Copy a foreign trainer's checkpoint, a file or a folder, beside a manifest that we write for it.

    The copy is kept: a promotion that is killed and repeated must find the same manifest, its time stamp included.
    """
    final = stage.hand_over / manifest.folder_name(step)
    if final.exists() and not manifest.verify(final):
        return final
    stage.hand_over.mkdir(exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=stage.hand_over, prefix=f".{final.name}."))
    try:
        if source.is_dir():
            shutil.copytree(source, draft, dirs_exist_ok=True)
        else:
            shutil.copy2(source, draft / source.name)
        manifest.write(
            draft,
            step=step,
            tokens=tokens,
            purpose=_purpose(decided),
            world=decided.gpus,
            config_digest=manifest.digest_of(read_json(stage.config) or {}),
            extra={"trainer": decided.trainer.name, "entry": None if source.is_dir() else source.name},
        )
        draft.chmod(0o755)  # mkdtemp's own mode would keep other users of the store out
        return manifest.publish(draft, final)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
