"""How a tokenization goes on, in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tasks.tokenize import Progress


@contextmanager
def shown() -> Iterator[Callable[[Progress], None]]:
    """Yield what shows progress on stderr: a line that changes on a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console

    began = time.perf_counter()
    with Console(stderr=True).status("reading") as line:

        def show(progress: Progress) -> None:
            rate = progress.tokens / (time.perf_counter() - began)
            line.update(
                f"{progress.path.name} ({progress.number} of {progress.inputs}): "
                f"{progress.documents:,} documents, {progress.tokens:,} tokens, {rate:,.0f} tokens/s"
            )

        yield show
