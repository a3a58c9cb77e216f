"""Checkpoints written beside training: what a copy holds, what a slow or broken store does, when one is due by time."""

import threading

import pytest
import torch

from tests.trained import order, span, tensors
from training import manifest, saving
from training.checkpoint import Progress
from training.config import read_config
from training.pace import Pace
from training.processes import TrainingError, World
from training.saving import Saver, Written


@pytest.fixture
def saved(tmp_path):
    """A saver of one process, its records, and its state."""
    records = []
    stage = order(tmp_path / "gpus_8", span(1, 9, 8))
    written = Written(stage, read_config(stage), "0" * 64, lambda cursor: {})
    saver = Saver(written, World(), lambda kind, **values: records.append(values))
    return saver, records, {"model.weight": torch.arange(4.0)}, stage / "checkpoints"


def test_a_checkpoint_holds_the_state_of_its_step_whatever_the_next_step_does(saved):
    saver, records, state, folder = saved
    assert saver.age() == {}
    for step in (1, 2):
        assert saver.begin(state, Progress(step, 8), "periodic", must=True)
        saver.staged()
        state["model.weight"] += 1
    saver.finish()
    for step in (1, 2):
        found = tensors(folder / manifest.folder_name(step))["model.weight"]
        assert torch.equal(found, torch.arange(4.0) + step - 1)
    assert [r["step"] for r in records] == [1, 2]
    assert all(0 <= r["stall_seconds"] <= r["seconds"] and r["bytes"] > 0 for r in records)
    assert saver.age()["checkpoint_age_seconds"] >= 0


def test_a_slow_store_stops_nobody_but_whom_a_later_stage_relies_on(saved, monkeypatch, capfd):
    saver, records, state, _ = saved
    go_on, write = threading.Event(), manifest.write
    monkeypatch.setattr(saving, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(manifest, "write", lambda *args, **values: go_on.wait(20) and write(*args, **values))
    assert saver.begin(state, Progress(1, 8), "periodic", must=False)
    assert not saver.begin(state, Progress(2, 16), "periodic", must=False)
    assert "no checkpoint of step 2: that of step 1 is being written" in capfd.readouterr().err
    assert records == []
    threading.Timer(0.05, go_on.set).start()
    assert saver.begin(state, Progress(3, 24), "hand_over", must=True, saved=True)
    saver.finish()
    assert [(r["step"], r.get("saved")) for r in records] == [(1, None), (3, True)]


def test_what_cannot_be_written_is_said_in_one_sentence_and_is_not_there(saved, monkeypatch):
    saver, records, state, folder = saved
    monkeypatch.setattr(manifest, "publish", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    saver.begin(state, Progress(7, 8), "final", must=True)
    with pytest.raises(TrainingError, match=r"checkpoint of step 7 could not be written: .*No space left"):
        saver.finish()
    assert records == []
    assert manifest.whole(folder) == []


@pytest.mark.parametrize("step_seconds", [0.3, 7.0, 100.0])
def test_by_the_clock_a_checkpoint_is_due_soon_after_the_interval_also_where_steps_slow_down(step_seconds):
    now = [1000.0]
    pace, due = Pace(15, World(), lambda: now[0]), []
    for step in range(1, 40_000):
        slowed = 1.5 if now[0] > 3000 else 1.0
        now[0] += step_seconds * slowed
        if pace.due(step):
            due.append(now[0])
        if now[0] > 10_000:
            break
    gaps = [b - a for a, b in zip([1000.0, *due], due, strict=False)]
    assert len(due) >= 8
    assert all(900 <= gap < 900 * 1.1 + 6 * 1.5 * step_seconds for gap in gaps), gaps


def test_the_clock_is_asked_a_few_times_an_interval_not_at_every_step():
    asked, done = [], [0]
    pace = Pace(15, World(), lambda: asked.append(1) or done[0] * 0.1)
    for step in range(1, 9001):
        done[0] = step
        pace.due(step)
    assert 3 < len(asked) < 60


def test_without_minutes_nothing_is_due():
    pace = Pace(None, World())
    assert not any(pace.due(step) for step in range(1, 100))
