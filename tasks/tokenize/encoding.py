"""Text to tokens: by a file of the library ``tokenizers``, or byte by byte."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.errors import ScaleupError
from training.token_index import Dtype, smallest_dtype

BYTES = "bytes"


@dataclass(frozen=True)
class Encoder:
    """How texts become tokens, and all that an index says of it."""

    encode: Callable[[Sequence[str]], list[NDArray[Any]]]  # one array a text, the end of the document included
    vocabulary: int
    described: Mapping[str, Any]
    end: int | None

    @property
    def dtype(self) -> Dtype:
        """The type that holds every token."""
        return smallest_dtype(self.vocabulary)


def encoder(said: str, document_end: str | None) -> Encoder:
    """Return the encoder that a word or a file names; raise ScaleupError where it is none."""
    if said == BYTES:
        if document_end is not None:
            raise ScaleupError("--document-end: bytes have no token to spare; documents' ends are in the index anyway")
        return Encoder(_bytes, 256, {"name": BYTES, "sha256": None}, None)
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ScaleupError("--tokenizer FILE needs the library tokenizers; pip install 'scaleup[tokenize]'") from error
    path = Path(said)
    if not path.is_file():
        raise ScaleupError(f"--tokenizer {said}: there is no such file; bytes is the word for no tokenizer")
    content = path.read_bytes()
    try:
        tokenizer = Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises Exception itself
        raise ScaleupError(f"--tokenizer {said} is no file of the library tokenizers: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    end = tokenizer.token_to_id(document_end) if document_end is not None else None
    if document_end is not None and end is None:
        raise ScaleupError(f"--document-end {document_end!r} is no token of {said}")
    # Ids may have gaps, so the largest counts and not how many there are.
    vocabulary = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    dtype = smallest_dtype(vocabulary)

    def encode(texts: Sequence[str]) -> list[NDArray[Any]]:
        # In Rust, on all cores; special tokens are the caller's matter, so the file's template adds none.
        found = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        tail = [] if end is None else [end]
        return [np.array([*one.ids, *tail], dtype=dtype) for one in found]

    return Encoder(encode, vocabulary, {"name": path.name, "sha256": hashlib.sha256(content).hexdigest()}, end)


def _bytes(texts: Sequence[str]) -> list[NDArray[Any]]:
    return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16) for text in texts]
