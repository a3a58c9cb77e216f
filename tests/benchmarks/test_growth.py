"""Time over size, from ten thousand steps to a million: ten times the records, at most twelve times the time."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rates import table

from tasks.live.state import LiveState
from tasks.live.steps import Terms
from tasks.records import follow, read_metrics
from tasks.statistics import EDetector, batch_means, spikes, warm_up
from training.config import Schedule, Span

SIZES = (10_000, 100_000, 1_000_000)
STATISTICS: dict[str, Callable[[np.ndarray], object]] = {
    "warm_up": warm_up,
    "batch_means": batch_means,
    "spikes": spikes,
    "e-detector": lambda y: EDetector(bar=1.01, sd=0.02).update(y.reshape(-1, 20).mean(axis=1)),
}


def write(path: Path, first: int, last: int) -> None:
    """Append steps with every field that our own trainer records."""
    rng = np.random.default_rng(first)
    with path.open("a") as file:
        for number in range(first, last + 1):
            seconds, loss = rng.normal(0.5, 0.005), rng.normal(3.0, 0.02)
            record = {
                "kind": "step", "step": number, "tokens": 8192 * number, "loss": loss, "step_seconds": seconds,
                "phase": "train", "attempt": 1, "time": 1.7e9 + number, "batch": 32, "grad_norm": loss / 6,
                "learning_rate": 3e-4, "data_seconds": 0.01, "forward_seconds": 0.1, "backward_seconds": 0.2,
                "communication_seconds": 0.05, "optimizer_seconds": 0.02, "wall_seconds": seconds,
                "tokens_per_gpu_second": 1024 / seconds, "memory_gib": 40.0,
            }  # fmt: skip
            file.write(json.dumps(record) + "\n")


def best(work: Callable[[], object], repeats: int) -> float:
    """Processor seconds of the fastest of several tries."""
    found = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def milliseconds(seconds: list[float]) -> list[str]:
    return [f"{1000 * s:,.1f}" for s in seconds]


def test_statistics_of_a_stage():
    y = 1 + 0.02 * np.random.default_rng(1).normal(size=SIZES[-1])
    rows, total = [], np.zeros(len(SIZES))
    for name, work in STATISTICS.items():
        work(y[: SIZES[0]])
        seconds = [best(lambda work=work, n=n: work(y[:n]), 7) for n in SIZES]
        total += seconds
        rows.append([name, *milliseconds(seconds)])
    rows.append(["all", *milliseconds(list(total))])
    print("\n\nmilliseconds of one core for frames in memory; the aim for a million is 1,000")
    print(table(["", *(f"{n:,} steps" for n in SIZES)], rows))
    for fewer, more in itertools.pairwise(total):  # single ones take so little that leaving the cache shows
        assert more <= 12 * fewer


def live_rules_on(new: list[dict[str, Any]]) -> Callable[[], object]:
    """Return what a look does with records that it has read: take up its state, judge, put it down again."""
    terms = Terms((Span("train", 1, 10**6, 32, 3e-4, Schedule()),))
    state = LiveState(begun=1.0)
    state.feed([{**record, "step": number} for number, record in enumerate(new, start=1)], terms, 0.0)
    kept = json.dumps(state.to_json())

    def look() -> None:
        again = LiveState.from_json(json.loads(kept))
        assert again.feed(new, terms, 0.0) == []
        json.dumps(again.to_json())

    return look


@pytest.mark.timeout(600)
def test_reading_records_and_a_look_at_new_ones(tmp_path: Path):
    path, read, offsets, looks = tmp_path / "metrics.jsonl", [], [], []
    written = 0
    for size in SIZES:
        write(path, written + 1, size - 1_000)
        offsets.append(path.stat().st_size)
        write(path, size - 999, size)
        written = size
        looks.append(best(lambda: follow(path, offsets[-1]), 5))
        read.append(best(lambda: read_metrics(path), 3))
        assert len(follow(path, offsets[-1])[0]) == 1_000
    rules = best(live_rules_on(follow(path, offsets[-1])[0]), 5)
    rows = [["read_metrics", *milliseconds(read)], ["1,000 new records read", *milliseconds(looks)]]
    rows.append(["all live rules on them, state from and to JSON", "", "", *milliseconds([rules])])
    print(f"\n\nmilliseconds of one core; {path.stat().st_size / 1e6:.0f} MB for a million. The aim for a look is 50")
    print(table(["", *(f"{n:,} records" for n in SIZES)], rows))
    assert read[1] <= 12 * read[0]
    assert read[2] <= 12 * read[1]
    assert looks[2] <= 3 * looks[0]
