"""From a word in the orders to tokens: text as bytes, folders that ``scaleup tokenize`` wrote, files of other tools."""

from __future__ import annotations

import glob
import hashlib
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from training import token_index
from training.config import ConfigError
from training.config.data import DataSource
from training.data import corpus, megatron
from training.data.token_file import TokenFile, mapped
from training.data.tokens import InMemory, Joined, Tokens
from training.token_index import HELD_OUT, TRAIN, WIDTH


@dataclass(frozen=True)
class Source:
    """One source, opened: two rows of tokens with no document in both, and what tells them from any others."""

    name: str
    train: Tokens
    held_out: Tokens
    fingerprint: str
    files: int
    vocabulary: int | None  # every token is below it; None: unknown, so each sample that is read is looked at


def open_source(said: DataSource, verify: str, below: int) -> Source:
    """Open what a source names; raise ConfigError where it is not there, damaged, or of other tokens than ``below``."""
    if any(letter in said.path for letter in "*?["):
        return _joined(said, verify, below)
    path = Path(said.path)
    if said.path == "stdlib" or (path.is_dir() and not (path / token_index.INDEX).exists()):
        text = corpus.load(said.path)
        train, held_out = InMemory(text.train), InMemory(text.held_out)
        return _unused(said, Source(said.path, train, held_out, text.fingerprint, text.files, corpus.BYTES))
    if path.is_dir():
        return _unused(said, _folder(path, verify))
    found = path if path.suffix == ".bin" else path.with_name(path.name + ".bin")
    if found.is_file():
        return _foreign(said, found, below)
    raise ConfigError(
        f"data: {said.path!r} is neither 'stdlib' nor a folder; nor is {found} a file of tokens. "
        "`scaleup tokenize` makes a folder of tokens"
    )


def _joined(said: DataSource, verify: str, below: int) -> Source:
    """Join all that a pattern finds, in the order of their names."""
    paths = sorted(path for path in glob.glob(said.path) if not path.endswith(".idx"))
    if not paths:
        raise ConfigError(f"data: nothing matches {said.path!r}")
    if said.held_out is not None:
        train = [_foreign_file(Path(path), said, below) for path in paths]
        held = _foreign_file(Path(said.held_out), said, below)
        marks = "".join(_sampled(Path(path)) for path in [*paths, said.held_out])
        return Source(said.path, Joined(train), held, hashlib.sha256(marks.encode()).hexdigest(), len(paths) + 1, None)
    parts = [_folder(Path(path), verify) for path in paths]
    return Source(
        said.path,
        Joined([part.train for part in parts]),
        Joined([part.held_out for part in parts]),
        hashlib.sha256("".join(part.fingerprint for part in parts).encode()).hexdigest(),
        sum(part.files for part in parts),
        max(part.vocabulary or 0 for part in parts),
    )


def _unused(said: DataSource, found: Source) -> Source:
    """Refuse words that mean nothing for this kind of source."""
    if said.held_out is not None or said.dtype is not None:
        raise ConfigError(f"data: {said.path!r} has its held-out part and type itself; remove held_out and dtype")
    return found


def _folder(folder: Path, verify: str) -> Source:
    """Open a folder that ``scaleup tokenize`` wrote."""
    index = token_index.read(folder)
    if missing := [part for part in (TRAIN, HELD_OUT) if part not in index.parts]:
        raise ConfigError(f"data: {folder} has no part {missing[0]!r}")
    if problems := token_index.differences(folder, index, whole=verify == "whole"):
        raise ConfigError(f"data: {'; '.join(problems)}")

    def part(name: str) -> Tokens:
        if not index.parts[name].tokens:
            raise ConfigError(f"data: {folder} has no token in its part {name}; it needs more documents")
        ends, _ = mapped(folder / f"{name}.ends", 8)
        return TokenFile(folder / f"{name}.bin", WIDTH[index.dtype], ends)

    return Source(str(folder), part(TRAIN), part(HELD_OUT), index.fingerprint, 4, index.vocabulary)


def _foreign(said: DataSource, path: Path, below: int) -> Source:
    """Open a ``.bin`` of another tool, and the one that is held out; nothing but their bytes vouches for them."""
    if said.held_out is None:
        raise ConfigError(f"data: {path} is one part; say which file is held_out: beside its path")
    held_out = Path(said.held_out)
    held_out = held_out if held_out.suffix == ".bin" else held_out.with_name(held_out.name + ".bin")
    if held_out.resolve() == path.resolve():
        raise ConfigError(f"data: {path} is also its own held-out part; what is trained on shows nothing")
    train, held = _foreign_file(path, said, below), _foreign_file(held_out, said, below)
    mark = hashlib.sha256((_sampled(path) + _sampled(held_out)).encode()).hexdigest()
    return Source(said.path, train, held, mark, 2, None)


def _foreign_file(path: Path, said: DataSource, below: int) -> TokenFile:
    index = path.with_suffix(".idx")
    if not index.exists():
        if said.dtype is None:
            raise ConfigError(f"data: {path} has no index {index.name}; say its dtype: uint16 or uint32")
        return TokenFile(path, WIDTH[said.dtype], None, below)
    read = megatron.read_idx(index)
    _refuse_other_size(path, index, read.tokens * read.width)
    ends: Tensor = read.ends
    return TokenFile(path, read.width, ends, below)


def _refuse_other_size(path: Path, index: Path, wanted: int) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ConfigError(f"data: {path} cannot be opened: {error.strerror}") from error
    if size != wanted:
        how = "was cut short" if size < wanted else "has grown"
        raise ConfigError(f"data: {path} {how}: it has {size} bytes, {index.name} says {wanted}")


def _sampled(path: Path) -> str:
    index = path.with_suffix(".idx")
    return token_index.sampled_sha256(path) + (token_index.sampled_sha256(index) if index.exists() else "")
