"""What can go wrong with a store, told apart by what a caller does next."""

from __future__ import annotations


class StoreError(ValueError):
    """A store cannot take or give a checkpoint; the message says which, where and why."""


class Unreachable(StoreError):
    """A store did not answer for as long as it was asked: nothing is known of what it holds. Ask again later."""


class Absent(StoreError):
    """There is no object of that name; whoever counted on it decides whether that is damage."""


class Damaged(StoreError):
    """Bytes are not what their name or manifest says: the checkpoint is quarantined, an older one taken.

    ``objects`` are the keys whose own bytes are wrong, so that nothing is built on them again.
    """

    def __init__(self, message: str, objects: tuple[str, ...] = ()) -> None:
        """Keep the sentence and the keys."""
        super().__init__(message)
        self.objects = objects


class Taken(StoreError):
    """The place already holds another checkpoint, whole; it is not written over."""
