"""Ctrl-C, a kill and a closed terminal, as one exception; held back where a process would be started and forgotten."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A person or the system asked us to end."""


class Interruption:
    """Turns SIGINT, SIGTERM and SIGHUP into :class:`Interrupted` in the main thread while the block lasts."""

    def __init__(self) -> None:
        """Not in force yet."""
        self._shields = 0
        self._pending = False
        self._over = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interruption:
        """Take the signals over."""
        self._before = {number: signal.signal(number, self._received) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self._over:
            return
        if self._shields:
            self._pending = True
        else:
            raise Interrupted

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Hold signals back: between the start of a process and the record of its number nothing may come."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
        if self._pending and not self._shields:
            self._pending = False
            raise Interrupted

    def ignore(self) -> None:
        """From now on hear nothing more: the end has begun, and an impatient second Ctrl-C would leave half of it."""
        self._over = True
