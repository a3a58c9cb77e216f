"""Documents, one after another, out of the files that hold them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tasks.errors import ScaleupError

LINES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
_PARQUET_ROWS = 1024  # read at once


def inputs_of(said: Sequence[str]) -> list[Path]:
    """Return the files that were named, and all files below folders that were, sorted by path; none twice."""
    found: dict[Path, None] = {}
    for name in said:
        path = Path(name)
        if path.is_dir():
            below = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path)))
            if not below:
                raise ScaleupError(f"{path} holds no file")
            found |= dict.fromkeys(below)
        elif path.is_file():
            found[path] = None
        else:
            raise ScaleupError(f"{path} is neither a file nor a folder")
    return list(found)


def documents(path: Path, field: str) -> Iterator[str]:
    """Yield the texts of one file: a line each of JSON lines, a row each of parquet, any other file as a whole."""
    if path.name.endswith(LINES):
        yield from _json_lines(path, field)
    elif path.suffix == ".parquet":
        yield from _parquet(path, field)
    else:
        yield from _text(path)


def _hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)


def _text(path: Path) -> Iterator[str]:
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ScaleupError(f"{path} is not UTF-8 text (byte {error.start})") from error
    if text:
        yield text


def _json_lines(path: Path, field: str) -> Iterator[str]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _field(line, field, f"{path}, line {number}")
    except (EOFError, gzip.BadGzipFile) as error:
        raise ScaleupError(f"{path} was cut short or is no gzip file: {error}") from error


def _field(line: bytes, field: str, where: str) -> str:
    try:
        said = json.loads(line)
    except ValueError as error:
        raise ScaleupError(f"{where} is not JSON: {error}") from error
    text = said.get(field) if isinstance(said, dict) else None
    if not isinstance(text, str):
        there = ", ".join(said) if isinstance(said, dict) else type(said).__name__
        raise ScaleupError(f"{where} has no text in {field!r}; it has {there}; name another with --field")
    return text


def _parquet(path: Path, field: str) -> Iterator[str]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ScaleupError(f"{path} needs pyarrow; pip install 'scaleup[tokenize]'") from error
    try:
        table = parquet.ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise ScaleupError(f"{path} is no sound parquet file: {error}") from error
    with table:
        if field not in table.schema_arrow.names:
            there = ", ".join(table.schema_arrow.names)
            raise ScaleupError(f"{path} has no column {field!r}; it has {there}; name another with --field")
        row = 0
        for batch in table.iter_batches(_PARQUET_ROWS, columns=[field]):
            for value in batch.column(0).to_pylist():
                row += 1
                if not isinstance(value, str):
                    raise ScaleupError(f"{path}, row {row}: {field!r} holds {type(value).__name__}, not text")
                yield value
