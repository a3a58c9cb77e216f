"""The ``store:`` block of a cluster file: where checkpoints are kept, and their copies in a second region."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictStr

from tasks.config.errors import Problem
from tasks.config.values import Count, Positive, Strict, Text
from tasks.stage_dir import home
from training.store import Place, StoreSettings

_SHORTEST_KEY = 32  # bytes: as many as SHA-256 gives


class StorePlace(Strict):
    """A folder that all users of the store reach, or a prefix of a bucket. Credentials come by boto3's chain alone."""

    kind: Literal["folder", "s3"] = "folder"
    path: Text | None = Field(default=None, description="a folder, relative to SCALEUP_HOME or absolute")
    bucket: Text | None = Field(default=None, description="name of a bucket, for kind s3")
    prefix: StrictStr = Field(default="", description="what keys in the bucket begin with")
    endpoint: Annotated[StrictStr, Field(pattern=r"^https?://")] | None = Field(
        default=None, description="address of an S3 server that is not AWS, http(s)://..."
    )
    region: Text | None = Field(default=None, description="the bucket's region, where boto3 does not know it already")

    @property
    def root(self) -> Path:
        """The folder, absolute (``store`` where none is said)."""
        return home() / Path(self.path or "store").expanduser()

    def place(self) -> Place:
        """Return it as the machine that uses it needs it."""
        if self.kind == "folder":
            return Place(path=str(self.root))
        return Place("s3", None, self.bucket, self.prefix, self.endpoint, self.region)


class Store(StorePlace):
    """Where checkpoints are kept. A relative path is inside ``SCALEUP_HOME`` (``.scaleup``)."""

    replica: StorePlace | None = Field(default=None, description="a second region: {kind, path} or {kind, bucket}")
    replicated_by: Literal["us", "bucket"] = Field(
        default="us",
        description="us copies each whole checkpoint; or the bucket's rules do, checked",
    )
    chunk_mib: Positive = Field(default=16.0, description="how large the pieces of a checkpoint are")
    part_mib: Positive = Field(default=16.0, description="chunks beyond this go to S3 in parts")
    parallel: Count = Field(default=8, description="how many chunks move at once")
    mib_per_second: Positive | None = Field(default=None, description="cap on the bandwidth, each way; none by default")
    retry_seconds: Positive = Field(default=120.0, description="how long a store that does not answer is asked again")
    coding: Literal["raw", "planes", "delta"] = Field(
        default="planes", description="as they are, byte planes compressed, or as differences from a full checkpoint"
    )
    full_every: Count = Field(default=8, description="with coding delta, how many checkpoints share a full one")
    keep: Count = Field(default=3, description="how many periodic checkpoints a stage keeps in the store")
    key_file: Text | None = Field(default=None, description="a file (mode 0600) with the key that signs promotions")

    def settings(self) -> StoreSettings:
        """Return the block as plain settings, paths absolute."""
        return StoreSettings(
            place=self.place(),
            replica=self.replica.place() if self.replica else None,
            key_file=str(Path(self.key_file).expanduser()) if self.key_file else None,
            **{name: getattr(self, name) for name in _TAKEN_OVER},
        )


_TAKEN_OVER = (
    "replicated_by", "chunk_mib", "part_mib", "parallel", "mib_per_second", "retry_seconds", "coding", "full_every",
    "keep",
)  # fmt: skip


def store_problems(store: Store) -> list[Problem]:
    """Return what is wrong between keys of the block that are fine each on its own."""
    problems = _place("store", store)
    if store.replica is not None:
        problems += _place("store.replica", store.replica)
        if not problems and store.replica.place() == store.place():
            problems.append(Problem("store.replica", "is the store itself; a second region is another place"))
    if store.replicated_by == "bucket" and (store.kind != "s3" or store.replica is None or store.replica.kind != "s3"):
        text = "bucket needs a store and a replica of kind s3; write `us`, or name both buckets"
        problems.append(Problem("store.replicated_by", text))
    if store.key_file is not None:
        problems += _key(Path(store.key_file).expanduser())
    return problems


def _place(where: str, place: StorePlace) -> list[Problem]:
    if place.kind == "s3":
        problems = [] if place.bucket else [Problem(f"{where}.bucket", "is missing; kind s3 needs a bucket")]
        if place.path is not None:
            problems.append(Problem(f"{where}.path", "is for kind folder; in a bucket it is `prefix`"))
        return problems
    named = [name for name in ("bucket", "prefix", "endpoint", "region") if getattr(place, name)]
    problems = [Problem(f"{where}.{name}", "is for kind s3, and the kind is folder") for name in named]
    if where == "store.replica" and place.path is None:
        problems.append(Problem(f"{where}.path", "is missing; kind folder needs a path"))
    return problems


def _key(file: Path) -> list[Problem]:
    where = "store.key_file"
    if not file.is_absolute():
        return [Problem(where, f"must be absolute or begin with ~, not {str(file)!r}")]
    if not file.is_file():
        text = f"{str(file)!r} does not exist; make one: head -c 32 /dev/urandom > {file} && chmod 600 {file}"
        return [Problem(where, text)]
    mode, size = stat.S_IMODE(file.stat().st_mode), file.stat().st_size
    if mode & 0o077:
        return [Problem(where, f"{str(file)!r} has mode {mode:04o}, so others may read it; `chmod 600` it")]
    if size < _SHORTEST_KEY:
        return [Problem(where, f"{str(file)!r} has {size} bytes; a key needs {_SHORTEST_KEY} or more")]
    return []
