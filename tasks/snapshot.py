"""The code of a run as it was at its first launch, so that a job that is started again on day 5 runs day 1's.

What git tracks, or would track, is copied as it lies there, uncommitted changes included, into ``code/`` of the run; a
folder that is in no git work tree cannot be told from its data, and is used where it lies.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tasks.revisions import revisions
from tasks.stage_dir import RunDir, write_json

CODE, RECORD = "code", ".snapshot.json"


def snapshot(run: RunDir, folder: Path) -> Path:
    """Return ``folder`` as it was when this was first called for the run, or itself where git does not know it.

    A revision of the run's recipe may ask for the code as it lies by then.
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    if not top:
        return folder
    root = Path(top)
    asked = [revision.number for revision in revisions(run) if revision.code]
    kept = run.path / CODE / (f"{root.name}.revision_{asked[-1]}" if asked else root.name)
    if not kept.exists():
        _copy(root, kept)
    return kept / folder.resolve().relative_to(root.resolve())


def _copy(root: Path, kept: Path) -> None:
    """Copy a work tree whole: under another name first, renamed when all is there; of two copies at once one stays."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=kept.parent, prefix=f".{kept.name}."))
    draft.chmod(0o755)
    names = (_git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard") or "").split("\0")
    for name in filter(None, names):
        source, target = root / name, draft / name
        if not os.path.lexists(source) or (source.is_dir() and not source.is_symlink()):
            continue  # deleted and not committed; a submodule
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
    changed = _git(root, "status", "--porcelain") or ""
    said = {"from": str(root), "commit": _git(root, "rev-parse", "HEAD"), "changed": changed.splitlines()}
    write_json(draft / RECORD, said)
    try:
        draft.rename(kept)
    except OSError:  # another launch was quicker
        shutil.rmtree(draft)


def _git(folder: Path, *command: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *command], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout if "-z" in command else done.stdout.strip()) if done.returncode == 0 else None
