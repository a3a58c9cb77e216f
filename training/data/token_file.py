"""Memory-mapped token files: read in place, by as many processes as there are, through one page cache.

A file that changes its size or its time while a job reads it is named before more is read: behind the end of a
shortened file a mapping gives no error but SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import warnings
from pathlib import Path

import torch
from torch import Tensor

from training.config import ConfigError, DataError

# Torch has few operations on unsigned integers: they are mapped as signed ones, and the sign is masked away.
_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def mapped(path: Path, width: int) -> tuple[Tensor, int]:
    """Return a file's integers of ``width`` bytes, read-only and not read yet, and the open file they come from.

    Raises ConfigError for a file that is missing, empty, or holds a part of an integer.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"data: {path} cannot be opened: {error.strerror}") from error
    size = os.fstat(handle).st_size
    if size == 0 or size % width:
        os.close(handle)
        what = "is empty" if size == 0 else f"has {size} bytes, which are no whole number of {width}-byte integers"
        raise ConfigError(f"data: {path} {what}")
    # Not copied on write: a private writable mapping of more than memory and swap is refused by Linux (overcommit 0).
    view = mmap.mmap(handle, size, access=mmap.ACCESS_READ)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(view, dtype=_SIGNED[width]), handle


class TokenFile:
    """A flat file of tokens, and where its documents end."""

    def __init__(self, path: Path, width: int, ends: Tensor | None = None, below: int | None = None) -> None:
        """Map ``path``, tokens of ``width`` bytes; ``ends`` int64 [documents] ascends; tokens must be ``below``."""
        self.path = path
        self._tokens, self._handle = mapped(path, width)
        self._mask = (1 << 8 * width) - 1 if width in (2, 4) else None
        self._ends, self._below = ends, below
        self._seen = self._state()

    def __len__(self) -> int:
        """How many tokens there are."""
        return len(self._tokens)

    def cut(self, starts: Tensor, width: int) -> Tensor:
        """Return ``width`` tokens from each start on; raise DataError where the file is no longer what it was."""
        self._refuse_changed()
        found = self._tokens.unfold(0, width, 1).index_select(0, starts).to(torch.int64)
        if self._mask is not None:
            found &= self._mask
        if self._below is not None and len(found) and not 0 <= int(found.min()) <= int(found.max()) < self._below:
            bad = int(found[(found < 0) | (found >= self._below)][0])
            raise DataError(
                f"data: {self.path} holds the token {bad}, and model.vocabulary is {self._below}; "
                "is it of this tokenizer, and of this type?"
            )
        return found

    def documents(self, starts: Tensor, width: int) -> Tensor | None:
        """Return of the same tokens how many documents end before each; None where the ends are not known."""
        if self._ends is None:
            return None
        places = starts[:, None] + torch.arange(width)
        return torch.searchsorted(self._ends, places, right=True)

    def _state(self) -> tuple[int, int]:
        found = os.fstat(self._handle)
        return found.st_size, found.st_mtime_ns

    def _refuse_changed(self) -> None:
        now = self._state()
        if now == self._seen:
            return
        was, size = self._seen[0], now[0]
        what = f"it had {was} bytes and has {size}" if size != was else "somebody wrote into it"
        raise DataError(f"data: {self.path} changed while this job reads it: {what}")
