"""What a cluster's ``store:`` block comes to on the machine that uses it; plain JSON, so that a job can be given it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from training.store.coding import Coding
from training.store.errors import StoreError
from training.store.folder import FolderObjects
from training.store.objects import Objects


@dataclass(frozen=True)
class Place:
    """A folder, or a prefix of a bucket. Credentials are never part of it: boto3 finds them."""

    kind: Literal["folder", "s3"] = "folder"
    path: str | None = None  # of a folder, absolute
    bucket: str | None = None
    prefix: str = ""
    endpoint: str | None = None  # an address, where the server is not AWS
    region: str | None = None


@dataclass(frozen=True)
class StoreSettings:
    """Where checkpoints are kept, where their second copies are, and how they are cut, coded and sent."""

    place: Place
    replica: Place | None = None
    replicated_by: Literal["us", "bucket"] = "us"
    chunk_mib: float = 16
    part_mib: float = 16  # a stored chunk larger than this goes to S3 in parts
    parallel: int = 8
    mib_per_second: float | None = None  # cap on what the store may take from the network, each way
    retry_seconds: float = 120
    coding: Coding = "planes"
    full_every: int = 8  # with coding delta: how many checkpoints rest on one full base, itself counted
    keep: int = 3  # periodic checkpoints of a series
    key_file: str | None = None  # signs promotions

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> StoreSettings:
        """Return what :meth:`to_json` returned; raise StoreError for a key that is not known."""
        try:
            replica = said.get("replica")
            return cls(**{**said, "place": Place(**said["place"]), "replica": Place(**replica) if replica else None})
        except (TypeError, KeyError) as error:
            raise StoreError(f"store: these are no settings of a store: {error}") from error


def open_objects(place: Place, settings: StoreSettings) -> Objects:
    """Return the objects of a place. Nothing is asked of it yet."""
    if place.kind == "folder":
        if not place.path:
            raise StoreError("store: kind folder needs a path")
        return FolderObjects(Path(place.path))
    if not place.bucket:
        raise StoreError("store: kind s3 needs a bucket")
    from training.store.s3 import S3Objects  # boto3 takes half a second to import; who has a folder never needs it

    return S3Objects(
        place.bucket,
        place.prefix,
        endpoint=place.endpoint,
        region=place.region,
        part_mib=settings.part_mib,
        parallel=settings.parallel,
        mib_per_second=settings.mib_per_second,
        retry_seconds=settings.retry_seconds,
    )
