"""What is wrong with an order, for the person who wrote it."""

from __future__ import annotations


class ConfigError(ValueError):
    """``config.json`` does not say what a trainer needs; the message names the key and the value."""


class DataError(ConfigError):
    """A file of samples is not, or no longer, what it was when the job began; the message names it."""
