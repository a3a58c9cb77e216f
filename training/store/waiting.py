"""How long and how fast: retries with jitter, and a cap on the bandwidth that training's own traffic is spared."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

FIRST_SECONDS = 0.1
LONGEST_SECONDS = 20.0


def with_retries(
    ask: Callable[[], Answer],
    may_try_again: Callable[[Exception], bool],
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """Return what ``ask`` returns; ask again until ``seconds`` are over while its errors may pass by themselves.

    Waits are drawn evenly between nothing and a bound that doubles ("full jitter", AWS Architecture Blog, 2015): a
    thousand nodes whose store went away do not all come back in the same instant.
    """
    deadline, bound = time.monotonic() + seconds, FIRST_SECONDS
    while True:
        try:
            return ask()
        except Exception as error:
            wait = random.uniform(0, bound)
            if not may_try_again(error) or time.monotonic() + wait >= deadline:
                raise
        sleep(wait)
        bound = min(LONGEST_SECONDS, 2 * bound)


class Bandwidth:
    """A cap in bytes a second that all threads of a process share; None lets everything through at once."""

    def __init__(self, mib_per_second: float | None) -> None:
        """Begin with nothing spent."""
        self._rate = None if mib_per_second is None else mib_per_second * 2**20
        self._free_at = 0.0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Wait until ``count`` more bytes keep the mean under the cap; the first bytes after a pause go at once."""
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + count / self._rate
        if begin > now:
            time.sleep(begin - now)
