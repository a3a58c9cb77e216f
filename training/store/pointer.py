"""What is written of a checkpoint beside its chunks: the stored manifest, and the pointer that makes it visible.

The pointer is one small object, written last. Whoever finds it finds everything; whoever dies before it leaves
chunks that nobody refers to.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from training import manifest
from training.manifest import Manifest, ManifestError
from training.store.chunks import Chunk, sum_of
from training.store.errors import Damaged

SCHEMA = 1


@dataclass(frozen=True)
class StoredManifest:
    """Which chunks make which file, and the checkpoint's own ``manifest.json``, byte for byte."""

    series: str
    manifest: str  # the text of manifest.json
    files: Mapping[str, tuple[Chunk, ...]]
    base: str | None = None  # the stored manifest whose chunks the deltas are differences from; None: this one is full
    since_base: int = 0  # how many checkpoints ago that was
    schema: int = SCHEMA

    def to_bytes(self) -> bytes:
        """Return the object's bytes; their SHA-256 is its name."""
        files = {name: [chunk.to_json() for chunk in made_of] for name, made_of in self.files.items()}
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | {"files": files}
        return (json.dumps(plain, sort_keys=True, separators=(",", ":")) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> StoredManifest:
        """Return what :meth:`to_bytes` wrote; raise Damaged, naming ``where``."""
        try:
            plain = json.loads(data)
            files = {name: tuple(map(Chunk.from_json, made_of)) for name, made_of in plain["files"].items()}
            read = cls(**{**plain, "files": files})
            if read.schema != SCHEMA:
                raise ValueError(f"schema {read.schema!r}; this version reads {SCHEMA}")
            facts = read.facts
        except (ValueError, TypeError, KeyError, AttributeError, ManifestError) as error:
            raise Damaged(f"{where} is no stored manifest ({type(error).__name__}: {error})") from error
        wanted = {name: file.bytes for name, file in facts.files.items()}
        given = {name: sum(chunk.size for chunk in made_of) for name, made_of in files.items()}
        if wanted != given:
            raise Damaged(f"{where}: its chunks make other files than its manifest.json lists")
        return read

    @property
    def facts(self) -> Manifest:
        """The checkpoint's manifest, as :func:`training.manifest.read` would give it."""
        return manifest.parse(self.manifest.encode(), "the manifest.json of a stored checkpoint")

    @property
    def digest(self) -> str:
        """SHA-256 of the object's bytes: its name."""
        return sum_of(self.to_bytes())

    @property
    def chunks(self) -> Iterator[Chunk]:
        """Every chunk of every file, bases included; the same one may come more than once."""
        return (part for made_of in self.files.values() for chunk in made_of for part in chunk.all)


@dataclass(frozen=True)
class Pointer:
    """``checkpoints/step_00000070.json``: what a listing shows, and the name of the stored manifest."""

    series: str
    step: int
    stored_manifest: str  # SHA-256 of it, so its name
    manifest: str  # SHA-256 of the checkpoint's own manifest.json
    purpose: str
    tokens: int
    world: int
    size: int  # bytes of the checkpoint's files
    time: float  # when the checkpoint was written by the trainer
    schema: int = SCHEMA

    @classmethod
    def of(cls, stored: StoredManifest) -> Pointer:
        """Return the pointer that makes a stored manifest visible."""
        facts = stored.facts
        return cls(
            stored.series, facts.step, stored.digest, facts.digest, facts.purpose, facts.tokens,
            facts.world, facts.bytes, facts.time,
        )  # fmt: skip

    def to_bytes(self) -> bytes:
        """Return the object's bytes."""
        return (json.dumps(dataclasses.asdict(self), sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Pointer:
        """Return what :meth:`to_bytes` wrote; raise Damaged, naming ``where``."""
        try:
            read = cls(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise Damaged(f"{where} is no pointer to a checkpoint ({type(error).__name__}: {error})") from error
        if read.schema != SCHEMA:
            raise Damaged(f"{where} has schema {read.schema!r}; this version reads {SCHEMA}")
        return read

    def differences(self, other: Pointer) -> list[str]:
        """Return a sentence for each fact in which this pointer and what it points to differ."""
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return [f"{name} is {mine[name]!r}, what it points to says {theirs[name]!r}" for name in mine
                if mine[name] != theirs[name]]  # fmt: skip


def pointer_key(series: str, step: int) -> str:
    """Return the key of a step's pointer."""
    return f"{series}/checkpoints/{manifest.folder_name(step)}.json"


def manifest_key(series: str, digest: str) -> str:
    """Return the key of a stored manifest."""
    return f"{series}/manifests/{digest}.json"


def step_of(key: str) -> int | None:
    """Return the step that a pointer's key names, or None for another object."""
    name = key.rpartition("/")[2]
    digits = name.removeprefix("step_").removesuffix(".json")
    return int(digits) if name.startswith("step_") and name.endswith(".json") and digits.isdigit() else None
