"""Secrets by name from a file of mode 0600: read when a job starts, into its environment, and nowhere else."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path


class SecretsUnusable(ValueError):
    """The file is missing, readable by others, or lacks a name; the message never holds a value."""


def read_secrets(path: str | None, names: Sequence[str]) -> dict[str, str]:
    """Return the values of ``names`` from ``NAME=value`` lines; raise :class:`SecretsUnusable` saying what is wrong."""
    if not names:
        return {}
    if path is None:
        raise SecretsUnusable(f"secrets {', '.join(names)} are asked for, but no secrets_file is named")
    file = Path(path).expanduser()
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        text = file.read_text()
    except OSError as error:
        raise SecretsUnusable(f"secrets_file {file} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise SecretsUnusable(f"secrets_file {file} has mode {mode:04o}, so others may read it; `chmod 600 {file}`")
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and not name.startswith("#"):
            found[name.strip()] = value.strip().strip("\"'")
    missing = [name for name in names if name not in found]
    if missing:
        raise SecretsUnusable(f"secrets_file {file} has no {', '.join(missing)}; a line there is NAME=value")
    return {name: found[name] for name in names}
