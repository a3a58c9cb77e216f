"""A folder of tokens at rest: flat files, and ``index.json`` that says what they are and their sums. No torch.

``<part>.bin`` holds the tokens of one part (``train``, ``held_out``), little-endian, without header, as nanoGPT's do;
``<part>.ends`` one int64 a document: how many tokens of the part lie before its end. ``scaleup tokenize`` writes them.

What a start compares with the index is a choice: SHA-256 reads about 1.5 GB/s here, so a terabyte would cost every
start eleven minutes, and every node of a thousand GPUs again. A start compares sizes and 256 pieces of 64 KiB, evenly
spread (16 MiB; files up to 256 MiB whole). That finds a file cut short, grown, replaced or tokenized anew, not a few
flipped bytes between two pieces: those are for ``scaleup tokenize --check FOLDER`` and for ``verify: whole``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from training.config.errors import ConfigError

INDEX = "index.json"
FORMAT = "scaleup-tokens"
SCHEMA = 1
TRAIN, HELD_OUT = "train", "held_out"
WIDTH = {"uint16": 2, "uint32": 4}  # bytes of a token
READ_WHOLE_BYTES = 256 * 2**20
PIECES, PIECE_BYTES = 256, 64 * 2**10

Dtype = Literal["uint16", "uint32"]


@dataclass(frozen=True)
class FileSums:
    """Size and sums of one file."""

    bytes: int
    sha256: str
    sampled_sha256: str


@dataclass(frozen=True)
class PartIndex:
    """One part of a folder: how much is in it, and its two files."""

    tokens: int
    documents: int
    bin: FileSums
    ends: FileSums


@dataclass(frozen=True)
class TokenIndex:
    """``index.json``: what the tokens are, and what the files beside it must be."""

    dtype: Dtype
    vocabulary: int  # every token is below it
    tokenizer: Mapping[str, Any]  # name, and SHA-256 of its file
    document_end: int | None  # the token that ends every document, where one was added
    parts: Mapping[str, PartIndex]

    @property
    def fingerprint(self) -> str:
        """One SHA-256 that stands for every token and every document's end."""
        said = {name: [part.tokens, part.bin.sha256, part.ends.sha256] for name, part in self.parts.items()}
        return hashlib.sha256(json.dumps([self.dtype, said], sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return what ``index.json`` holds."""
        said = dataclasses.asdict(self)
        return {"format": FORMAT, "schema": SCHEMA, "fingerprint": self.fingerprint, **said}


def smallest_dtype(vocabulary: int) -> Dtype:
    """Return the narrowest type that holds every token below ``vocabulary``."""
    return "uint16" if vocabulary <= 2**16 else "uint32"


def sums(path: Path) -> FileSums:
    """Return the size and both sums of a file."""
    with path.open("rb") as file:
        whole = hashlib.file_digest(file, "sha256").hexdigest()
    return FileSums(path.stat().st_size, whole, sampled_sha256(path))


def sampled_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's size and evenly spread pieces, the first and last bytes among them."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{size}\0".encode())
    with path.open("rb") as file:
        if size <= READ_WHOLE_BYTES:
            digest.update(hashlib.file_digest(file, "sha256").digest())
            return digest.hexdigest()
        for piece in range(PIECES):
            digest.update(os.pread(file.fileno(), PIECE_BYTES, (size - PIECE_BYTES) * piece // (PIECES - 1)))
    return digest.hexdigest()


def write(folder: Path, index: TokenIndex) -> None:
    """Write ``index.json`` durably: with it the folder is whole."""
    with (folder / INDEX).open("w") as file:
        file.write(json.dumps(index.to_json(), indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(folder: Path) -> TokenIndex:
    """Read a folder's index; raise ConfigError where it is none, or not one that this version reads."""
    path = folder / INDEX
    try:
        said = json.loads(path.read_text())
        if said["format"] != FORMAT or said["schema"] != SCHEMA:
            raise ConfigError(
                f"data: {path} is {said['format']!r} of schema {said['schema']!r}; "
                f"this version reads {FORMAT!r} of schema {SCHEMA}"
            )
        index = TokenIndex(
            said["dtype"],
            said["vocabulary"],
            said["tokenizer"],
            said["document_end"],
            {name: _part(part) for name, part in said["parts"].items()},
        )
        if index.dtype not in WIDTH or index.fingerprint != said["fingerprint"]:
            raise ConfigError(f"data: {path} was edited: its fingerprint is not that of the sums it holds")
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"data: {path} is no index of tokens ({type(error).__name__}: {error})") from error
    return index


def differences(folder: Path, index: TokenIndex, whole: bool) -> list[str]:
    """Return a sentence for every file that is not what the index says: its size, and sampled or all bytes."""
    found = []
    for name, part in index.parts.items():
        for file, wanted in ((f"{name}.bin", part.bin), (f"{name}.ends", part.ends)):
            if problem := _difference(folder / file, wanted, whole):
                found.append(problem)
    return found


def _difference(path: Path, wanted: FileSums, whole: bool) -> str | None:
    if not path.is_file():
        return f"{path} is missing"
    size = path.stat().st_size
    if size != wanted.bytes:
        how = "was cut short" if size < wanted.bytes else "has grown"
        return f"{path} {how}: it has {size} bytes, its index says {wanted.bytes}"
    if whole:
        with path.open("rb") as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == wanted.sha256
    else:
        same = sampled_sha256(path) == wanted.sampled_sha256
    return None if same else f"{path} has changed since its index was written: the SHA-256 sums differ"


def _part(said: Mapping[str, Any]) -> PartIndex:
    return PartIndex(said["tokens"], said["documents"], FileSums(**said["bin"]), FileSums(**said["ends"]))
