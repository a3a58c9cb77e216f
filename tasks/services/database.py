"""SQLite files that are whole or not there: made, or brought to a newer form, in a draft that takes their place."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tasks.stage_dir import write_whole


def is_current(path: Path, version: str) -> bool:
    """Say whether the file is there in the form of ``version`` of the program that it belongs to."""
    stamp = _stamp(path)
    return path.exists() and stamp.exists() and stamp.read_text() == version


def bring_to(path: Path, version: str, make: Callable[[Path], None]) -> None:
    """Let ``make`` build the database, or change a copy of the one that is there; killed anywhere, the old one stays.

    Both Airflow and MLflow leave a half-made database when they are interrupted, and then refuse it for good.
    """
    if is_current(path, version):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".draft-{path.name}")
    for leftover in path.parent.glob(f"{draft.name}*"):  # with SQLite's journals
        leftover.unlink()
    if path.exists():
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(draft)) as target:
            _settle(source)
            source.backup(target)
    make(draft)
    with closing(sqlite3.connect(draft)) as made:
        _settle(made)
    os.replace(draft, path)
    write_whole(_stamp(path), version)


def _settle(connection: sqlite3.Connection) -> None:
    """Bring the journal's content into the file itself: beside another file the journal would be taken for its own."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _stamp(path: Path) -> Path:
    return path.with_name(f"{path.name}.version")
