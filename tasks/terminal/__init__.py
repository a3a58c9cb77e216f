"""How a run is told in a terminal (one live table), and where there is none (a line a change)."""

from __future__ import annotations

from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.live import Live

from tasks.stage_dir import RunDir
from tasks.terminal.ladder_view import Lines, render


class LinesTeller:
    """Each change once, as a line: for logs and pipes."""

    def __init__(self, out: TextIO) -> None:
        """Write to ``out``."""
        self._out, self._lines = out, Lines()

    def __enter__(self) -> LinesTeller:
        """Nothing is held."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is let go of."""

    def say(self, line: str) -> None:
        """Write one line, at once."""
        print(line, file=self._out, flush=True)

    def show(self, run: RunDir) -> None:
        """Write what changed since the last call."""
        for line in self._lines.new(run):
            self.say(line)


class LiveTeller:
    """The ladder as one table that stays in its place; what is said goes above it."""

    def __init__(self, console: Console) -> None:
        """Draw on ``console``, a terminal."""
        self._live = Live(console=console, refresh_per_second=4)

    def __enter__(self) -> LiveTeller:
        """Begin to draw."""
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last picture standing."""
        self._live.__exit__(kind, error, trace)

    def say(self, line: str) -> None:
        """Print one line above the table; brackets in it are text, not markup."""
        self._live.console.print(line, markup=False, highlight=False)

    def show(self, run: RunDir) -> None:
        """Draw the run as it stands."""
        self._live.update(render(run), refresh=True)


def teller(out: TextIO, plain: bool = False) -> LinesTeller | LiveTeller:
    """Return a live table where ``out`` is a terminal that can show one, else lines."""
    console = Console(file=out)
    return LinesTeller(out) if plain or not console.is_terminal or console.is_dumb_terminal else LiveTeller(console)
