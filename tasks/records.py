"""``metrics.jsonl`` as frames, and as a stream: the one reader of what a trainer recorded.

A resumed trainer appends, so a step may stand there twice; the last attempt's line counts. A line may be torn by
the trainer's death: only whole lines are read. Anything else that breaks the contract is named with its line.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic_core import from_json  # pydantic's own parser: a third of the standard library's time

from tasks.errors import RecordsInvalid
from training.config import OPTIONAL, REQUIRED

if TYPE_CHECKING:
    import pandas as pd

STEP_COLUMNS = (*REQUIRED, *OPTIONAL)
HELD_OUT_COLUMNS = ("step", "tokens", "loss", "at", "attempt", "time")
CHECKPOINT_COLUMNS = ("step", "path", "purpose", "seconds", "bytes", "attempt", "time")
_TEXT = ("phase", "at", "path", "purpose")
_WHOLE = ("step", "attempt")
_ROWS_AT_ONCE = 1024  # held as dictionaries, in a cache's reach; a million of them would take gigabytes


@dataclass(frozen=True)
class Metrics:
    """What a trainer recorded so far, each step once.

    ``steps`` has one row a step, in order (a replayed step and a trained one of the same number are two rows), the
    columns of :data:`STEP_COLUMNS` (NaN where absent) and any further field that the trainer wrote.
    """

    header: dict[str, Any]  # the newest one: of each field whether it is real, measured or modelled
    steps: pd.DataFrame
    held_out: pd.DataFrame
    checkpoints: pd.DataFrame
    attempts: int  # how often a trainer began to write: its headers, or 1 for a trainer without
    torn: int  # lines that a dying trainer left unfinished


def read_metrics(path: Path) -> Metrics:
    """Read the whole file (none: no rows); raise :class:`RecordsInvalid` naming the first line that is wrong."""
    tables = {
        "step": _Table(STEP_COLUMNS),
        "held_out": _Table(HELD_OUT_COLUMNS),
        "checkpoint": _Table(CHECKPOINT_COLUMNS),
    }
    header: dict[str, Any] = {}
    headers, attempt, torn = 0, 1, 0
    for number, value in _numbered(path):
        if value is None:
            torn += 1
            continue
        kind = value.get("kind", "step")
        if kind == "header":
            header, headers = value, headers + 1
            attempt = headers
        elif isinstance(kind, str) and kind in tables:
            if kind != "step" or not _plain_step(value):
                _require(value, kind, f"{path} line {number}")
            value.setdefault("attempt", attempt)
            if kind == "step":
                value.setdefault("phase", "train")
            tables[kind].add(value)
    frames = {kind: table.frame() for kind, table in tables.items()}
    return Metrics(
        header=header,
        steps=_steps(frames["step"]),
        held_out=_last_of_each(frames["held_out"], ["step", "at"]),
        checkpoints=_last_of_each(frames["checkpoint"], ["step", "purpose"]),
        attempts=headers or (1 if len(frames["step"]) else 0),
        torn=torn,
    )


def follow(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Return the records after byte ``offset`` (whole lines only) and the offset to go on from.

    A line that is no JSON is held back until the next one tells whether a death tore it (a new attempt's header
    follows) or the file is unsound (:class:`RecordsInvalid`).
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            lines = file.readlines()
    except FileNotFoundError:
        return [], offset
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    if lines and _parse(lines[-1]) is None:
        lines.pop()
    found = [value for _, value in _parsed(lines, f"{path} from byte {offset}") if value is not None]
    return found, offset + sum(map(len, lines))


def each(path: Path) -> Iterator[dict[str, Any]]:
    """Yield every record of a file in the order written, one at a time; nothing of torn lines, or of no file."""
    return (value for _, value in _numbered(path) if value is not None)


def furthest_step(records: Sequence[Mapping[str, Any]]) -> int:
    """Return the highest step number among records, 0 where there is none."""
    return max((int(r["step"]) for r in records if r.get("kind", "step") == "step" and "step" in r), default=0)


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the object in a line ({} for a blank one), or None where it holds no JSON object."""
    try:
        value = from_json(line)
    except ValueError:
        if not line.strip():
            return {"kind": ""}
        try:
            value = json.loads(line)  # has the last word: it takes a little more (a byte order mark, lone surrogates)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _numbered(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield (line number, object) of a file, None for a torn line; nothing where there is no file."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        yield from _parsed(file, str(path))


def _parsed(lines: Iterable[bytes], where: str) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield (line number, object), and None for a torn line: the last, where no line feed ends it, or no JSON and a
    new attempt's header follows it.
    """
    torn_at: tuple[int, bytes] | None = None
    unfinished: tuple[int, bytes] | None = None
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            unfinished = (number, line)
            break  # a trainer may just be writing it; what comes after belongs to the next look
        value = _parse(line)
        if torn_at is not None:
            if value is None or value.get("kind") != "header":
                raise RecordsInvalid(_not_an_object(where, *torn_at))
            yield torn_at[0], None
            torn_at = None
        if value is None:
            torn_at = (number, line)
        else:
            yield number, value
    if torn_at is not None:
        raise RecordsInvalid(_not_an_object(where, *torn_at))
    if unfinished is not None and unfinished[1].strip():
        yield unfinished[0], None


def _not_an_object(where: str, number: int, line: bytes) -> str:
    shown = line.removesuffix(b"\n")[:60].decode(errors="replace")
    return f"{where} line {number} is not a JSON object: {shown!r}; a trainer appends one whole object a line"


def _plain_step(value: Mapping[str, Any]) -> bool:
    """Say whether a step's required fields are at a glance what they must be; others are asked one by one."""
    return (
        type(value.get("step")) is int
        and type(value.get("tokens")) is int
        and type(value.get("loss")) is float
        and type(value.get("step_seconds")) is float
        and type(value.get("attempt", 1)) is int
        and abs(value["step"]) < 2**62 > abs(value["tokens"])
    )


def _require(value: Mapping[str, Any], kind: str, where: str) -> None:
    needed = REQUIRED if kind == "step" else ("step", "loss") if kind == "held_out" else ("step", "path")
    for name in needed:
        if name not in value:
            raise RecordsInvalid(f"{where} has no {name!r}; a {kind} record needs {', '.join(needed)}")
    for name in (*needed, "attempt"):
        if name == "path" or name not in value:
            continue
        number = value[name]
        # null is how some trainers write NaN: a loss that is not a number is for the gates to judge, not for us
        if number is None and name in ("loss", "step_seconds"):
            continue
        whole = name in ("step", "tokens", "attempt")
        if isinstance(number, bool) or not isinstance(number, int | float) or (whole and not _is_whole(number)):
            raise RecordsInvalid(
                f"{where}: {name} is {number!r}; it must be {'a whole number' if whole else 'a number'}"
            )


def _is_whole(number: float) -> bool:
    """Say whether a number counts something: no fraction, and within the 64 bits of a column."""
    return abs(number) < 2**62 and number == int(number)


class _Table:
    """Rows of one kind, kept column by column as they come."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._rows: list[dict[str, Any]] = []
        self._numbers: dict[str, list[np.ndarray]] = {name: [] for name in columns if name not in _TEXT}
        self._others: dict[str, list[Any]] = {name: [] for name in columns if name in _TEXT}
        self._length = 0

    def add(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) == _ROWS_AT_ONCE:
            self._take()

    def frame(self) -> pd.DataFrame:
        """Return a frame of the table's columns, then whatever else the rows hold; numbers as numbers."""
        import pandas as pd  # half a second that following a file, and so every look, is spared

        self._take()
        columns: dict[str, Any] = {name: np.concatenate(pieces) for name, pieces in self._numbers.items()}
        columns |= {name: pd.Series(values, dtype=object) for name, values in self._others.items()}
        extra = [name for name in columns if name not in self._columns]
        frame = pd.DataFrame({name: columns[name] for name in (*self._columns, *extra)}, copy=False)
        with contextlib.suppress(UnicodeEncodeError):  # half of a surrogate pair: text that stays an object
            frame[extra] = frame[extra].infer_objects()
        if "tokens" in frame and frame["tokens"].dtype == "float64" and np.isfinite(frame["tokens"]).all():
            frame["tokens"] = frame["tokens"].astype("int64")
        return frame

    def _take(self) -> None:
        """Move the rows into columns."""
        columns = _transposed(self._rows)
        count = len(self._rows)
        missing = [None] * count
        for name, pieces in self._numbers.items():
            pieces.append(_as_numbers(columns.get(name, missing), whole=name in _WHOLE))
        for name in columns:
            if name not in self._numbers and name not in self._others and name != "kind":
                self._others[name] = [None] * self._length
        for name, values in self._others.items():
            values.extend(columns.get(name, missing))
        self._length += count
        self._rows = []


def _transposed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Any]]:
    """Return rows as columns, None where a row lacks one; quick where all rows have the same names."""
    names = list(rows[0]) if rows else []
    if len(names) > 1 and all(len(row) == len(names) for row in rows):
        try:
            return dict(zip(names, zip(*map(itemgetter(*names), rows), strict=True), strict=True))
        except KeyError:
            pass
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


def _as_numbers(values: Sequence[Any], *, whole: bool) -> np.ndarray:
    """Return a column as int64 or as float64."""
    if whole:
        return np.asarray(values, dtype="int64")
    plain = set(map(type, values)) <= {float, int, type(None)}
    try:
        return np.asarray(values if plain else _coerced(values), dtype="float64")
    except OverflowError:
        return np.asarray(_coerced([_within_floats(value) for value in values]), dtype="float64")


def _coerced(values: Sequence[Any]) -> Sequence[Any]:
    """Return numbers and texts of numbers as they are, NaN for anything else."""
    import pandas as pd

    return pd.to_numeric(pd.Series(values, dtype=object), errors="coerce").tolist()


def _within_floats(value: Any) -> Any:
    """Return a whole number beyond all floats as an infinite one: for the gates to judge."""
    if isinstance(value, int) and abs(value) >= 2**1023:
        return math.inf if value > 0 else -math.inf
    return value


def _steps(frame: pd.DataFrame) -> pd.DataFrame:
    replay = frame["phase"] == "replay"
    return _last_of_each(frame.assign(_replay=replay), ["step", "_replay"]).drop(columns="_replay")


def _last_of_each(frame: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Keep of each key the row of the last attempt (within one, the last written), ordered by step."""
    if (np.diff(frame["step"]) > 0).all():  # as a trainer that never died writes them
        return frame
    kept = frame.sort_values("attempt", kind="stable").drop_duplicates(key, keep="last")
    return kept.sort_values("step", kind="stable").reset_index(drop=True)
