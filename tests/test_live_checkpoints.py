"""Checkpoints of any make, as live rules know, keep and set them aside; and the state file itself."""

import json

import numpy as np
import pytest
from live_records import fed, series

from tasks.live.checkpoints import kept, newest, set_aside
from tasks.live.state import LiveState
from tasks.stage_dir import StageDir, write_json
from training import manifest


@pytest.fixture
def stage(tmp_path):
    """A stage folder with checkpoints of several makes."""
    made = StageDir(tmp_path / "run" / "gpus_8")
    (made.checkpoints / "global_step40").mkdir(parents=True)
    for name in ("00000010.state", "iter_0000020.pt", "latest", "epoch-final.pt", ".draft_99"):
        (made.checkpoints / name).write_text("x")
    ours = made.checkpoints / "step_00000030"
    ours.mkdir()
    (ours / "weights").write_text("w")
    manifest.write(ours, step=30, tokens=1, purpose="periodic", world=8, config_digest="d")
    manifest.pin(ours, "promoted")
    return made


def test_checkpoints_of_any_make_are_known_by_manifest_row_or_name(stage):
    rows = {"checkpoints/epoch-final.pt": 50}
    assert [one.step for one in kept(stage, rows)] == [10, 20, 30, 40, 50]
    assert newest(stage, rows, 35).step == 30
    assert newest(stage, rows, 5) is None
    assert newest(StageDir(stage.path / "nothing"), {}) is None


def test_what_is_set_aside_is_kept_whole_with_its_pin_and_twice_is_once(stage):
    moved = set_aside(stage, {}, 25, 1)
    assert [path.name for path in moved] == ["step_00000030", "global_step40"]
    assert manifest.verify(moved[0]) == []
    assert manifest.pinned(moved[0]) == "promoted"
    assert [one.step for one in kept(stage, {})] == [10, 20]
    assert (stage.checkpoints / "latest").exists()
    assert set_aside(stage, {}, 25, 1) == []


def test_live_json_is_read_back_as_it_was_written(tmp_path):
    records = series(700, loss=3 + 0.05 * (np.arange(700) >= 500), loss_sd=0.01)
    state = fed(records)
    path = tmp_path / "live.json"
    write_json(path, state.to_json())
    assert LiveState.from_json(json.loads(path.read_text())).to_json() == state.to_json()
