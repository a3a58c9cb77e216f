"""Where tables are printed."""

from __future__ import annotations

import sys

from rich.console import Console


def console() -> Console:
    """Return where tables are printed: as wide as the terminal, or wide enough where there is none."""
    return Console(width=None if sys.stdout.isatty() else 160)
