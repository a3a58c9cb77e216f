"""``metrics.jsonl`` as frames, and as a stream: the one reader of what a trainer recorded.

A resumed trainer appends, so a step may stand there twice; the last attempt's line counts. A line may be torn by
the trainer's death: only whole lines are read. Anything else that breaks the contract is named with its line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import RecordsInvalid
from training.config import OPTIONAL, REQUIRED

if TYPE_CHECKING:
    import pandas as pd

STEP_COLUMNS = (*REQUIRED, *OPTIONAL)
HELD_OUT_COLUMNS = ("step", "tokens", "loss", "at", "attempt", "time")
CHECKPOINT_COLUMNS = ("step", "path", "purpose", "seconds", "bytes", "attempt", "time")
_TEXT = ("phase", "at", "path", "purpose")
_KINDS = ("header", "step", "held_out", "checkpoint")


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
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    end = data.rfind(b"\n") + 1
    lines = data[:end].split(b"\n")[:-1]
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _KINDS}
    torn = 1 if data[end:].strip() else 0
    for number, value in _parsed(lines, str(path), first=1):
        if value is None:
            torn += 1
            continue
        kind = str(value.get("kind", "step"))
        if kind == "header":
            rows["header"].append(value)
        elif kind in rows:
            _require(value, kind, f"{path} line {number}")
            value.setdefault("attempt", max(1, len(rows["header"])))
            rows[kind].append(value)
    return Metrics(
        header=rows["header"][-1] if rows["header"] else {},
        steps=_steps(rows["step"]),
        held_out=_last_of_each(_frame(rows["held_out"], HELD_OUT_COLUMNS), ["step", "at"]),
        checkpoints=_last_of_each(_frame(rows["checkpoint"], CHECKPOINT_COLUMNS), ["step", "purpose"]),
        attempts=len(rows["header"]) or (1 if rows["step"] else 0),
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
            data = file.read()
    except FileNotFoundError:
        return [], offset
    lines = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]
    if lines and _parse(lines[-1]) is None:
        lines.pop()
    found = [value for _, value in _parsed(lines, f"{path} from byte {offset}", first=1) if value is not None]
    return found, offset + sum(len(line) + 1 for line in lines)


def furthest_step(records: Sequence[Mapping[str, Any]]) -> int:
    """Return the highest step number among records, 0 where there is none."""
    return max((int(r["step"]) for r in records if r.get("kind", "step") == "step" and "step" in r), default=0)


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the object in a line ({} for a blank one), or None where it holds no JSON object."""
    if not line.strip():
        return {"kind": ""}
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _parsed(lines: Sequence[bytes], where: str, first: int) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield (line number, object), and None for a torn line: no JSON, and a new attempt's header follows it."""
    torn_at: tuple[int, bytes] | None = None
    for number, line in enumerate(lines, start=first):
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


def _not_an_object(where: str, number: int, line: bytes) -> str:
    shown = line[:60].decode(errors="replace")
    return f"{where} line {number} is not a JSON object: {shown!r}; a trainer appends one whole object a line"


def _require(value: Mapping[str, Any], kind: str, where: str) -> None:
    needed = REQUIRED if kind == "step" else ("step", "loss") if kind == "held_out" else ("step", "path")
    for name in needed:
        if name not in value:
            raise RecordsInvalid(f"{where} has no {name!r}; a {kind} record needs {', '.join(needed)}")
        if name == "path":
            continue
        number = value[name]
        # null is how some trainers write NaN: a loss that is not a number is for the gates to judge, not for us
        if number is None and name in ("loss", "step_seconds"):
            continue
        whole = name in ("step", "tokens")
        if isinstance(number, bool) or not isinstance(number, int | float) or (whole and number != int(number)):
            raise RecordsInvalid(
                f"{where}: {name} is {number!r}; it must be {'a whole number' if whole else 'a number'}"
            )


def _steps(rows: list[dict[str, Any]]) -> pd.DataFrame:
    for row in rows:
        row.setdefault("phase", "train")
    frame = _frame(rows, STEP_COLUMNS)
    replay = frame["phase"] == "replay"
    return _last_of_each(frame.assign(_replay=replay), ["step", "_replay"]).drop(columns="_replay")


def _frame(rows: list[dict[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Return a frame with ``columns`` first and whatever else the rows hold, numbers as numbers."""
    import pandas as pd  # half a second that following a file, and so every look, is spared

    extra = list(dict.fromkeys(name for row in rows for name in row if name not in columns and name != "kind"))
    frame = pd.DataFrame(
        {name: pd.Series([row.get(name) for row in rows], dtype=object) for name in (*columns, *extra)}
    )
    for name in columns:
        if name in ("step", "attempt"):
            frame[name] = frame[name].astype("int64")
        elif name not in _TEXT:
            frame[name] = pd.to_numeric(frame[name], errors="coerce").astype("float64")
    if "tokens" in frame and not frame["tokens"].isna().any():
        frame["tokens"] = frame["tokens"].astype("int64")
    frame[extra] = frame[extra].infer_objects()
    return frame


def _last_of_each(frame: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Keep of each key the row of the last attempt (within one, the last written), ordered by step."""
    kept = frame.sort_values("attempt", kind="stable").drop_duplicates(key, keep="last")
    return kept.sort_values("step", kind="stable").reset_index(drop=True)
