"""What is read: `data:` of a recipe, one word or a mapping of sources and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from tasks.config.errors import plain
from tasks.config.values import CountOrZero, Positive, Strict, Text, only
from training import config as contract
from training.config.data import SYNTHETIC, Range, Skips


def _source(value: Any) -> Any:
    """Take a word for the source of that path."""
    return {"path": value} if isinstance(value, str) else value


def _ranges(value: Any) -> Any:
    """Take ``[4096, 8192]`` for a list of one range."""
    one = isinstance(value, list | tuple) and value and not any(isinstance(end, list | tuple) for end in value)
    ranges = [value] if one else value
    if isinstance(ranges, list | tuple) and any(not isinstance(r, list | tuple) or len(r) != 2 for r in ranges):
        raise ValueError(f"must be [first, end] or a list of such, not {plain(value)} with something else in it")
    return ranges


def _ascending(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    try:
        Skips(ranges)
    except contract.ConfigError as error:
        raise ValueError(str(error).removeprefix("data.skip_samples.")) from None
    return ranges


class DataSource(Strict):
    """One source of samples."""

    path: Text = Field(description="stdlib, a folder of text or tokens, a .bin file, or a pattern of such")
    weight: Positive = Field(default=1.0, description="its part of all samples, against the other sources' weights")
    held_out: Text | None = Field(default=None, description="the held-out .bin, of files of other tools")
    dtype: Literal["uint16", "uint32"] | None = Field(default=None, description="of a .bin without an index")


class DataConfig(Strict):
    """Sources, and how they are read; the trainer's contract explains each key (`training/config/data.py`)."""

    sources: Annotated[tuple[Annotated[DataSource, BeforeValidator(_source)], ...], Field(min_length=1)] = Field(
        description="a list of words or {path, weight}"
    )
    documents: Annotated[Literal["packed"], only(cut="documents are packed one behind the other so far")] = "packed"
    skip_samples: Annotated[
        tuple[tuple[CountOrZero, CountOrZero], ...], BeforeValidator(_ranges), AfterValidator(_ascending)
    ] = Field(default=(), description="[first, end], or a list of such: samples that are left out")
    verify: Literal["sampled", "whole"] = "sampled"
    prefetch_steps: CountOrZero = 2

    @property
    def orders(self) -> contract.Data:
        """The same as the trainer's contract has it."""
        said = self.model_dump()
        sources = tuple(contract.DataSource(**source) for source in said.pop("sources"))
        return contract.Data(sources=sources, **said)


def _kind(value: Any) -> str:
    return "=mapping" if isinstance(value, Mapping | DataConfig) else "=word"


DataChoice = Annotated[
    Annotated[Text, Tag("=word")] | Annotated[DataConfig, Tag("=mapping")],
    Discriminator(_kind),
]


def orders(said: str | DataConfig) -> str | contract.Data:
    """Return what the trainer's orders say of the data."""
    return said if isinstance(said, str) else said.orders


def is_synthetic(said: str | DataConfig) -> bool:
    """Whether the samples are random tokens."""
    return contract.Data.of(orders(said)).sources[0].path == SYNTHETIC
