"""``scaleup tokenize``: from text, JSON lines or parquet to a folder of tokens that training maps into memory.

The folder appears when it is whole: everything is written into a hidden one beside it, which is renamed at the end.
A document is held out by the SHA-256 of its text, so copies of one text are never in both parts, and neither the order
of the inputs nor a larger corpus moves a document from one part to the other.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import ScaleupError
from tasks.tokenize.documents import documents, inputs_of
from tasks.tokenize.encoding import Encoder, encoder
from tasks.tokenize.parts import Parts
from training import token_index
from training.config import ConfigError
from training.token_index import HELD_OUT, TRAIN, TokenIndex

BATCH_CHARACTERS = 4 * 2**20  # encoded at once: enough work for all cores, and little memory


@dataclass(frozen=True)
class Progress:
    """How far a tokenization has come."""

    path: Path  # the input that is being read
    number: int  # of the input, from 1
    inputs: int
    documents: int
    tokens: int


def tokenize(
    inputs: Sequence[str],
    out: Path,
    *,
    tokenizer: str,
    document_end: str | None = None,
    field: str = "text",
    held_out_percent: float = 1.0,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> TokenIndex:
    """Write the tokens of all documents of ``inputs`` into the new folder ``out``; return its index.

    ``tokenizer`` is ``bytes`` or a ``tokenizers`` JSON file; ``field`` names the text in JSON lines and parquet.
    Raises ScaleupError naming the file and the place of what cannot be read; then nothing is left behind.
    """
    if out.exists():
        raise ScaleupError(f"{out} exists; give another --out, or remove it")
    if not 0 < held_out_percent < 100:
        raise ScaleupError(f"--held-out-percent {held_out_percent:g} must lie between 0 and 100")
    paths, how = inputs_of(inputs), encoder(tokenizer, document_end)
    out.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.tokenizing."))
    try:
        with Parts(hidden, how.dtype, held_out_percent) as parts:
            for progress in _encode(paths, field, how, parts):
                tell(progress)
        index = TokenIndex(how.dtype, how.vocabulary, how.described, how.end, parts.sums())
        _refuse_empty(index)
        token_index.write(hidden, index)
        hidden.chmod(0o755)
        os.rename(hidden, out)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    return index


def check(folder: Path) -> TokenIndex:
    """Compare every byte of a folder with its index; raise ScaleupError naming the files that differ."""
    try:
        index = token_index.read(folder)
    except ConfigError as error:
        raise ScaleupError(str(error)) from error
    if problems := token_index.differences(folder, index, whole=True):
        raise ScaleupError("; ".join(problems))
    return index


def _encode(paths: Sequence[Path], field: str, how: Encoder, parts: Parts) -> Iterator[Progress]:
    """Encode all documents in batches, in the order of the inputs."""
    for number, path in enumerate(paths, start=1):
        for batch in _batches(documents(path, field)):
            parts.add(batch, how.encode(batch))
            yield Progress(path, number, len(paths), parts.documents, parts.tokens)


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    """Yield the texts in lists of about :data:`BATCH_CHARACTERS`."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _refuse_empty(index: TokenIndex) -> None:
    for name, remedy in ((TRAIN, "a smaller"), (HELD_OUT, "a larger")):
        if not index.parts[name].tokens:
            documents = sum(part.documents for part in index.parts.values())
            raise ScaleupError(
                f"none of the {documents} documents is in the part {name}; give more documents, or {remedy} "
                "--held-out-percent"
            )
