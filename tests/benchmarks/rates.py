"""Rates with their intervals, and a table to print them in."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from scipy.stats import binomtest


def with_interval(count: int, of: int) -> str:
    """Return a rate with its exact 95% interval (Clopper and Pearson 1934): ``.950 (.86 to .99)``."""
    interval = binomtest(count, of).proportion_ci(0.95)
    return f"{count / of:.3f} ({interval.low:.2f} to {interval.high:.2f})"


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as text, wide enough for all of it."""
    made = Table(*headers)
    for row in rows:
        made.add_row(*map(str, row))
    console = Console(width=160)
    with console.capture() as captured:
        console.print(made)
    return captured.get()
