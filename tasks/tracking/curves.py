"""Which points of ``metrics.jsonl`` go to MLflow: each step once, at most 5,000 a series and stage, every spike kept.

MLflow keeps both points when a step is logged twice with another value, so a record leaves only when it is *final*: a
whole checkpoint at or after its step exists, so that no restart can repeat it, or the stage is over. All choices
are functions of the file and of :class:`Marker`, so a crash before the marker is written sends the same points again,
which MLflow stores once.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

POINTS = 5000
"""Most points a series and stage; a browser draws that many at once, and ten thousand no longer."""

_A_BUCKET = 4  # first, least, greatest, and one spike more; what a bucket does not use, later buckets may
SPIKE = 6.0  # robust z: 6 sigma of the bucket, OLMo-core's rule for a spike

SERIES = (
    "loss",
    "step_seconds",
    "tokens_per_gpu_second",
    "grad_norm",
    "learning_rate",
    "loss_scale",
    "skipped_steps",
    "gradient_noise_sequences",
    "batch",
    "data_seconds",
    "forward_seconds",
    "backward_seconds",
    "communication_seconds",
    "optimizer_seconds",
    "wall_seconds",
    "memory_gib",
)
"""Fields of a step record that become curves, where the record has them."""


@dataclass(frozen=True)
class Point:
    """One point of a curve; ``time`` in milliseconds since the epoch, ``tokens`` is MLflow's step axis."""

    key: str
    value: float
    time: int
    tokens: int


@dataclass(frozen=True)
class Marker:
    """How far a stage's curves have been shipped. Written after the points are stored, never before."""

    offset: int = 0  # bytes of metrics.jsonl that need not be read again
    whole: int = -1  # greatest step of a whole checkpoint seen so far
    steps: Mapping[str, int] = field(default_factory=dict)  # last shipped step a family
    counts: Mapping[str, int] = field(default_factory=dict)  # points shipped a series

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Marker:
        """Read what :meth:`to_json` wrote; nothing shipped yet where there is none."""
        return cls(**value) if value else cls()


@dataclass(frozen=True)
class Batch:
    """What one look may ship: the points, the marker to write once they are stored, and the newest step record."""

    points: list[Point]
    marker: Marker
    newest: Mapping[str, Any] | None


def next_batch(metrics: Path, marker: Marker, *, planned_steps: int, first_step: int, over: bool, began: int) -> Batch:
    """Return the points of ``metrics`` that became final since ``marker``.

    ``planned_steps`` fixes the stride for the whole stage, ``began`` (ms) stands in for records without a time.
    """
    lines = list(_lines(metrics, marker.offset))
    whole = max([marker.whole, *(int(r["step"]) for _, r in lines if r.get("kind") == "checkpoint" and "step" in r)])
    horizon = math.inf if over else whole
    stride = 1 if planned_steps <= POINTS else math.ceil(planned_steps / (POINTS // _A_BUCKET))
    steps, counts = dict(marker.steps), dict(marker.counts)
    points: list[Point] = []
    for family, records in _final(lines, steps, horizon).items():
        width = stride if family == "curves" else 1
        for index, bucket in _buckets(records, first_step, width, horizon, over):
            points += _kept(family, bucket, index, width, counts, began)
            steps[family] = max(bucket)
    shipped = Marker(_safe_offset(lines, marker.offset, steps), whole, steps, counts)
    newest = next((r for _, r in reversed(lines) if family_of(r) == "curves"), None)
    return Batch(points, shipped, newest)


def family_of(record: Mapping[str, Any]) -> str | None:
    """Return the family a record's curves belong to; a replay repeats steps and so never enters the main curves."""
    kind = record.get("kind", "step")
    if kind == "held_out":
        return "held_out"
    if kind != "step" or "step" not in record:
        return None
    phase = record.get("phase") or "train"
    return phase if phase in ("replay", "probe") else "curves"


def forget_points(marker: Marker) -> Marker:
    """Return a marker that ships everything again, for a server that has nothing of it."""
    return replace(marker, offset=0, steps={}, counts={})


def _lines(path: Path, offset: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (offset after the line, record) of whole lines; what a killed writer left of a line is passed over."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                offset += len(line)
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict):
                    yield offset, record
    except FileNotFoundError:
        return


def _final(
    lines: Iterable[tuple[int, dict[str, Any]]], shipped: Mapping[str, int], horizon: float
) -> dict[str, dict[int, dict[str, Any]]]:
    """Return family -> step -> record of what is final and new; of a repeated step the last attempt counts."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for _, record in lines:
        family = family_of(record)
        if family is not None and shipped.get(family, -1) < int(record["step"]) <= horizon:
            found.setdefault(family, {})[int(record["step"])] = record
    return {family: dict(sorted(records.items())) for family, records in found.items()}


def _buckets(
    records: Mapping[int, dict[str, Any]], first: int, width: int, horizon: float, over: bool
) -> Iterator[tuple[int, dict[int, dict[str, Any]]]]:
    """Yield (index, records) of buckets of ``width`` steps; one that can still grow waits for the next look."""
    grouped: dict[int, dict[int, dict[str, Any]]] = {}
    for step, record in records.items():
        grouped.setdefault(max(0, step - first) // width, {})[step] = record
    for index, bucket in grouped.items():
        if over or first + (index + 1) * width - 1 <= horizon:
            yield index, bucket


def _kept(
    family: str, bucket: Mapping[int, Mapping[str, Any]], index: int, width: int, counts: dict[str, int], began: int
) -> list[Point]:
    points: list[Point] = []
    for name in ("loss",) if family == "held_out" else SERIES:
        key = "held_out_loss" if family == "held_out" else f"{family}/{name}"
        values = {s: float(r[name]) for s, r in bucket.items() if isinstance(r.get(name), int | float)}
        budget = min(POINTS, _A_BUCKET * (index + 1)) if width > 1 else POINTS
        chosen = _choose(values, width, budget - counts.get(key, 0))
        counts[key] = counts.get(key, 0) + len(chosen)
        points += [_point(key, values[step], bucket[step], began) for step in chosen]
    return points


def _choose(values: Mapping[int, float], width: int, budget: int) -> list[int]:
    """Return the steps to keep: all where the stride is 1, else first, least, greatest and the spikes, worst first."""
    if width == 1:
        return sorted(values)[: max(0, budget)]
    wanted = [s for s, v in values.items() if not math.isfinite(v)]
    finite = {s: v for s, v in values.items() if math.isfinite(v)}
    if finite:
        wanted += [max(finite, key=finite.__getitem__), min(finite, key=finite.__getitem__), min(finite)]
        middle = statistics.median(finite.values())
        spread = 1.4826 * statistics.median(abs(v - middle) for v in finite.values()) + 1e-12 * max(1.0, abs(middle))
        score = {s: abs(v - middle) / spread for s, v in finite.items()}
        wanted += sorted((s for s in finite if score[s] > SPIKE), key=lambda s: (-score[s], s))
    return sorted(list(dict.fromkeys(wanted))[: max(0, budget)])


def _point(key: str, value: float, record: Mapping[str, Any], began: int) -> Point:
    step = int(record["step"])
    time = record.get("time")
    # Without a time of its own a record gets one that another look would give it too, or MLflow would keep both.
    milliseconds = round(float(time) * 1000) if isinstance(time, int | float) else began + step
    return Point(key, value, milliseconds, int(record.get("tokens", step)))


def _safe_offset(lines: Iterable[tuple[int, dict[str, Any]]], offset: int, steps: Mapping[str, int]) -> int:
    """Return how far every line is shipped or carries no point, so that the next look starts there."""
    for end, record in lines:
        family = family_of(record)
        if family is not None and int(record["step"]) > steps.get(family, -1):
            break
        offset = end
    return offset
