"""A folder of text as bytes; the standard library's own source is the one that every machine has.

It differs a little from one Python to the next, so its fingerprint is recorded and keys every baseline.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from training.config import ConfigError

BYTES = 256  # a token is a byte
HELD_OUT_PERCENT = 5
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


@dataclass(frozen=True)
class Corpus:
    """Two texts, uint8 of shape [bytes], with no file in both; the fingerprint covers every name and byte."""

    train: Tensor
    held_out: Tensor
    fingerprint: str
    files: int


def load(name: str) -> Corpus:
    """Read the corpus ``stdlib``, or all ``*.py`` and ``*.txt`` below a folder given by its path."""
    root = Path(sysconfig.get_paths()["stdlib"]) if name == "stdlib" else Path(name)
    if not root.is_dir():
        raise ConfigError(f"data: {name!r} is neither 'stdlib' nor a folder")
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    fingerprint = hashlib.sha256()
    paths = _sources(root)
    for relative, path in paths:
        content = path.read_bytes()
        fingerprint.update(f"{relative}\0{len(content)}\0".encode() + content)
        parts[_is_held_out(relative)].append(content)
    for held_out, texts in parts.items():
        if not texts:
            part = "held-out" if held_out else "training"
            raise ConfigError(f"data: {root} has {len(paths)} files, none of them in the {part} part; it needs more")
    return Corpus(_bytes(parts[False]), _bytes(parts[True]), fingerprint.hexdigest(), len(paths))


def _sources(root: Path) -> list[tuple[str, Path]]:
    found = []
    for folder, folders, names in os.walk(root):
        # Pruned on the way down: site-packages alone may hold a hundred times more files than the library.
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        paths = (Path(folder, name) for name in names if name.endswith((".py", ".txt")))
        found += [(path.relative_to(root).as_posix(), path) for path in paths]
    return sorted(found)


def _is_held_out(relative: str) -> bool:
    return int.from_bytes(hashlib.sha256(relative.encode()).digest()[:8], "big") % 100 < HELD_OUT_PERCENT


def _bytes(texts: list[bytes]) -> Tensor:
    return torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8)
