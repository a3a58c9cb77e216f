"""A table of measured throughput, read as series: one recipe at growing scales. A mistake is named by its line."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from tasks.errors import TableInvalid
from tasks.statistics import Array

Kind = Literal["weak", "strong", "between"]
THROUGHPUT = ("tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s", "step_time_s")
ALIKE = math.log(1.1)  # batches a GPU within 10% of one another count as the same, as in the gates
SMALLEST, LARGEST = 1e-9, 1e18  # outside, a number is a slip of the pen
_NOT_THE_MODEL = re.compile(
    r"\b(?:amp[ _])?(?:bf16|fp16|fp32|tf32|m?x?fp8|nvfp4|int8)\b|\b\d\d\.\d\d(?:\.\d+)?\b", re.I
)


@dataclass(frozen=True)
class Row:
    """One line of the file: the numbers that are there, and its line."""

    line: int
    gpus: float
    numbers: dict[str, float]
    family: str
    said: str  # the column ``scaling``


@dataclass(frozen=True)
class Series:
    """One recipe at growing scales; throughput a GPU in whatever unit its rows share, batch a GPU where all say it."""

    name: str
    family: str
    kind: Kind
    gpus: Array
    throughput: Array
    batch: Array | None


@dataclass(frozen=True)
class Table:
    """The series of a file that can be scored, and how many could not, by reason."""

    path: Path
    series: list[Series]
    left_out: dict[str, int]


def read_table(path: Path, family: str | None = None) -> Table:
    """Read a CSV file; ``family`` names the column that says what must be left out together.

    Without, that is the column ``family``, else the model's name without precision and release, else the series.
    Raises TableInvalid, one sentence, on whatever is wrong.
    """
    rows: dict[str, list[Row]] = {}
    left_out: Counter[str] = Counter()
    for name, row in _rows(path, family, left_out):
        rows.setdefault(name, []).append(row)
    series = []
    for name, mine in rows.items():
        if len({row.gpus for row in mine}) < 3:
            left_out["fewer than three scales"] += 1
            continue
        _no_scale_twice(path, name, mine)
        one = _series(path, name, sorted(mine, key=lambda row: row.gpus))
        if one.kind == "between":
            left_out["batch a GPU neither kept nor divided"] += 1
        else:
            series.append(one)
    if not series:
        why = "; ".join(f"{n} with {reason}" for reason, n in left_out.items()) or "it has no rows"
        raise TableInvalid(
            f"{path}: no series can be backtested: {why}; a series needs three scales, two to fit and one to foretell"
        )
    return Table(path, series, dict(left_out))


def _rows(path: Path, family: str | None, left_out: Counter[str]) -> Iterator[tuple[str, Row]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            columns = [column or "" for column in reader.fieldnames or []]
            _check_columns(path, columns, family)
            family_of = _family(columns, family)
            for cells in reader:
                said = {column: (cells.get(column) or "").strip() for column in columns}
                if None in cells:
                    raise TableInvalid(f"{path} line {reader.line_num}: more cells than the {len(columns)} columns")
                if said.get("comparable", "").lower() in ("no", "false", "0"):
                    left_out["rows said to be not comparable"] += 1
                elif any(said.values()):
                    yield _row(path, reader.line_num, said, family_of)
    except OSError as error:
        raise TableInvalid(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TableInvalid(
            f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        ) from error
    except csv.Error as error:
        raise TableInvalid(f"{path} is not a CSV table: {error}") from error


def _check_columns(path: Path, columns: list[str], family: str | None) -> None:
    if not columns:
        raise TableInvalid(f"{path} is empty; its first line must name the columns, series_id and gpus among them")
    twice = [column for column, n in Counter(columns).items() if n > 1]
    if twice:
        raise TableInvalid(f"{path}: the column {twice[0]!r} is there twice")
    for needed in ["series_id", "gpus", *([family] if family else [])]:
        if needed not in columns:
            raise TableInvalid(f"{path} has no column {needed!r}; its columns are {', '.join(columns)}")
    if not set(THROUGHPUT) & set(columns):
        raise TableInvalid(f"{path} has no column of throughput; one of {', '.join(THROUGHPUT)} must be there")


def _family(columns: list[str], asked: str | None) -> Callable[[dict[str, str]], str]:
    column = asked or next((name for name in ("family", "model") if name in columns), "series_id")
    if column != "model":
        return lambda said: said[column] or said["series_id"]
    return lambda said: " ".join(_NOT_THE_MODEL.sub(" ", said["model"]).lower().split()) or said["series_id"]


def _row(path: Path, line: int, said: dict[str, str], family_of: Callable[[dict[str, str]], str]) -> tuple[str, Row]:
    if not said["series_id"]:
        raise TableInvalid(f"{path} line {line}: series_id is empty; it says which rows are one recipe")
    used = ("gpus", *THROUGHPUT, "global_batch_seqs", "seq_len")
    numbers = {name: _number(path, line, name, said[name]) for name in used if said.get(name)}
    gpus = numbers.pop("gpus", 0.0)
    if gpus != round(gpus) or gpus < 1:
        raise TableInvalid(f"{path} line {line}: gpus is {said['gpus']!r}; it must be a whole number from 1 on")
    return said["series_id"], Row(line, gpus, numbers, family_of(said), said.get("scaling", "").lower())


def _number(path: Path, line: int, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise TableInvalid(f"{path} line {line}: {name} is {text!r}, not a number") from error
    if not SMALLEST <= value <= LARGEST:
        raise TableInvalid(f"{path} line {line}: {name} is {text}; it must be a positive, finite number")
    return value


def _no_scale_twice(path: Path, name: str, rows: list[Row]) -> None:
    first: dict[float, int] = {}
    for row in rows:
        if row.gpus in first:
            raise TableInvalid(
                f"{path} line {row.line}: series {name!r} has {row.gpus:.0f} GPUs twice, first in line "
                f"{first[row.gpus]}; give each recipe its own series_id, and repeats as their mean"
            )
        first[row.gpus] = row.line


def _series(path: Path, name: str, rows: list[Row]) -> Series:
    gpus = np.array([row.gpus for row in rows])
    throughput = next(
        (found for found in (_throughput(rows, column) for column in THROUGHPUT) if found is not None), None
    )
    if throughput is None:
        line = next((row.line for row in rows if not row.numbers.keys() & set(THROUGHPUT)), rows[0].line)
        raise TableInvalid(
            f"{path} line {line}: the rows of series {name!r} share no column of throughput; one of "
            f"{', '.join(THROUGHPUT)} (the last with global_batch_seqs) must be filled in all of them"
        )
    batch = _batch(rows)
    return Series(name, rows[0].family, _kind(rows, gpus, batch), gpus, throughput, batch)


def _throughput(rows: list[Row], column: str) -> Array | None:
    if any(column not in row.numbers for row in rows):
        return None
    values = np.array([row.numbers[column] for row in rows])
    if column == "step_time_s":
        batch = _batch(rows)
        return None if batch is None else batch / values
    return values if column == "tokens_per_s_per_gpu" else values / np.array([row.gpus for row in rows])


def _batch(rows: list[Row]) -> Array | None:
    """Batch a GPU and step, in tokens where all rows say how long a sequence is, else in sequences."""
    if any("global_batch_seqs" not in row.numbers for row in rows):
        return None
    length = all("seq_len" in row.numbers for row in rows)
    return np.array(
        [row.numbers["global_batch_seqs"] * (row.numbers["seq_len"] if length else 1.0) / row.gpus for row in rows]
    )


def _kind(rows: list[Row], gpus: Array, batch: Array | None) -> Kind:
    said = {row.said for row in rows}
    if said in ({"weak"}, {"strong"}):
        return "weak" if said == {"weak"} else "strong"
    if batch is None or float(np.ptp(np.log(batch))) <= ALIKE:
        return "weak"  # of a batch that no row says nothing else can be supposed
    return "strong" if float(np.ptp(np.log(batch * gpus))) <= math.log(1.001) else "between"
