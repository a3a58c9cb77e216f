"""``scaleup checkpoints``: what a run has, where, whole or not, and how two differ."""

import json

import pytest
from stores import checkpoint

from tasks import checkpoints
from tasks.cli import main
from tasks.errors import ScaleupError
from training import manifest
from training.store import keep, put


@pytest.fixture
def stage(begin):
    """A stage with three checkpoints in its folder and two of them in the store, one pinned."""
    stage = begin()
    stage.checkpoints.mkdir(parents=True, exist_ok=True)
    for step in (2, 4, 6):
        folder = checkpoint(stage.checkpoints, step, purpose="hand_over" if step == 4 else "periodic")
        if step > 2:
            put(checkpoints.places(stage)["store"], folder)
    series = checkpoints.places(stage)["store"]
    keep.pin(series, series.pointer(4), {"by": "gates"})
    return stage


def spoil(stage):
    """Flip a byte of a stored chunk; return the store's series."""
    series = checkpoints.places(stage)["store"]
    used = next(c for c in series.stored_manifest(series.pointer(6)).files["index"])
    path = series.objects.root / series.name / "chunks" / used.object[:2] / used.object
    path.write_bytes(b"x" + path.read_bytes()[1:])
    return series


def test_ls_has_a_line_for_each_in_each_place(stage, capsys):
    assert main(["checkpoints", "ls", "latest"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [(row[1], row[2], row[-1] == "pinned") for row in rows] == [
        ("2", "folder", False), ("4", "folder", False), ("6", "folder", False),
        ("4", "store", True), ("6", "store", False),
    ]  # fmt: skip


def test_verify_reads_every_byte_and_names_the_damaged_one(stage, capsys):
    assert main(["checkpoints", "verify", "latest", "gpus_8"]) == 0
    assert capsys.readouterr().out.count(": whole") == 5
    spoil(stage)
    assert main(["checkpoints", "verify", "latest", "gpus_8", "--step", "6"]) == 1
    folder, store = capsys.readouterr().out.splitlines()
    assert folder == "gpus_8 step 6 folder: whole"
    assert store.startswith("gpus_8 step 6 store: ") and "which is not its name" in store


def test_what_was_put_aside_is_listed_with_its_reason(stage):
    series = spoil(stage)
    keep.quarantine(series, 6, [checkpoints.Damaged("a flipped bit")])
    assert [(one.step, one.damage) for one in checkpoints.listed(stage) if one.damage] == [
        (6, "put aside: a flipped bit")
    ]


def test_show_is_the_manifest_of_the_nearest(stage, capsys):
    assert main(["checkpoints", "show", "latest", "gpus_8", "--step", "4"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["manifest_sha256"] == manifest.read(stage.checkpoints / "step_00000004").digest
    assert set(told["files"]) == {"index", "empty", "shards/0.distcp", "shards/1.distcp"}


def test_diff_names_what_differs_and_nothing_else(stage, capsys):
    assert main(["checkpoints", "diff", "latest", "gpus_8", "--step", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["step: 2 -> 6", "tokens: 64 -> 192"]
    assert [line.split(":")[0] for line in lines[2:]] == ["file index", "file shards/0.distcp"]


def test_a_step_that_is_nowhere_is_answered_with_those_that_are(stage):
    with pytest.raises(ScaleupError, match="gpus_8 has no readable checkpoint of step 5; there are 2, 4, 6"):
        checkpoints.chosen(stage, 5)


def test_one_that_only_the_store_has_is_at_hand_for_a_while(stage):
    one = next(one for one in checkpoints.listed(stage) if one.place == "store")
    with checkpoints.at_hand(stage, one) as folder:
        assert manifest.verify(folder) == []
    assert not folder.exists()
