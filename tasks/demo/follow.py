"""Following a run: live where the terminal can redraw, line by line where the output is a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tasks.services.airflow_api import AirflowUnreachable, wait_seconds
from tasks.stage_dir import RunDir
from tasks.terminal.ladder_view import Lines, table

LOOK_SECONDS = 0.5
_ASK_SECONDS = 1.0
ENDED = ("success", "failed")


def waiting_line(console: Console) -> Callable[[str], None]:
    """Return what shows the one thing that is waited for: a line redrawn in a terminal, nothing in a log."""
    status = console.status("")

    def show(what: str) -> None:
        if not what:
            status.stop()
        elif console.is_terminal:
            status.update(f"waiting for {what}")
            status.start()

    return show


def follow(run: RunDir, state: Callable[[], str], mend: Callable[[], object], console: Console) -> str:
    """Show the run until Airflow says that it has ended; return how: ``success`` or ``failed``.

    ``mend`` is called at every look and starts again what has died; until it is back, ``state`` may raise.
    """
    lines = Lines()
    live = Live(console=console, auto_refresh=False, transient=False) if console.is_terminal else None
    block: AbstractContextManager[object] = live or nullcontext()
    now, asked = "queued", 0.0
    with block:
        while True:
            mend()
            if time.monotonic() - asked > _ASK_SECONDS:
                asked = time.monotonic()
                with suppress(AirflowUnreachable):  # it died and is on its way back
                    now = state()
            for line in lines.verdicts(run) if live else lines.new(run):
                # As Text: the options of a print hold for the live table that is drawn again below it as well.
                console.print(Text(line, style=_style(line)), soft_wrap=live is None)
            if live:
                live.update(table(run), refresh=True)
            if now in ENDED:
                return now
            wait_seconds(LOOK_SECONDS)


def _style(line: str) -> str:
    """Colour what stands against a stage, so that it is found among the many lines that do not."""
    against = ("  FAIL ", "  INVALID ", "  refused", "  failed", "  stopped")
    return "red" if any(word in line for word in against) else ""
