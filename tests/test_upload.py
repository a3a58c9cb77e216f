"""Beside training: what is whole goes into the store and the second region; a job finds it there again."""

import dataclasses
import json
import os
import pickle
import shutil

import pytest
import trained
from s3_servers import CREDENTIALS
from stores import checkpoint, folder_settings

from training import manifest
from training.config import StoreOrders, read_config
from training.restore import restore
from training.store import Place, StoreSettings, keep, open_replica, open_series, problems
from training.upload import Upload


def orders_of(root, **changes) -> StoreOrders:
    settings = folder_settings(root / "first", replica=Place(path=str(root / "second")), keep=2)
    return StoreOrders("small/run/gpus_8", dataclasses.replace(settings, **changes).to_json())


def places(orders):
    settings = StoreSettings.from_json(json.loads(json.dumps(orders.settings)))
    return open_series(settings, orders.series), open_replica(settings, orders.series)


def stage_of(folder, orders):
    trained.order(folder, trained.span(1, 10, 4), store=orders)
    (folder / "metrics.jsonl").write_text('{"kind": "header"}\n')
    return folder


def uploaded(stage, orders, *steps, purpose="periodic", seed=0):
    """Write checkpoints and upload what is due after each; return what was told of them."""
    upload, told = Upload.of(stage, orders), []
    for step in steps:
        checkpoint(stage / "checkpoints", step, purpose=purpose, seed=seed)
        told += [upload.upload(found) for found in upload.due()]
    return told


def test_each_whole_checkpoint_goes_to_both_regions_and_older_periodic_ones_go(tmp_path):
    orders = orders_of(tmp_path)
    told = uploaded(stage_of(tmp_path / "gpus_8", orders), orders, 2, 4, 6)
    for series in places(orders):
        assert series.steps() == [4, 6]
        assert problems(series, 6) == []
    assert [one["problems"] for one in told] == [[], [], []]
    assert told[-1]["replica"]["step"] == 6 and told[-1]["new_bytes"] > 0


def test_one_that_lags_stores_the_newest_first_and_what_a_stage_relies_on(tmp_path):
    orders = orders_of(tmp_path)
    stage = stage_of(tmp_path / "gpus_8", orders)
    for step, purpose in ((2, "periodic"), (3, "hand_over"), (4, "periodic"), (6, "periodic")):
        checkpoint(stage / "checkpoints", step, purpose=purpose)
    assert [found.step for found in Upload.of(stage, orders).due()] == [6, 3]


def test_where_the_store_does_not_answer_the_second_region_takes_it_and_that_is_said(tmp_path, monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    dead = Place("s3", bucket="b", endpoint="http://127.0.0.1:9", region="us-east-1")
    orders = orders_of(tmp_path, place=dead, retry_seconds=0.01)
    (told,) = uploaded(stage_of(tmp_path / "gpus_8", orders), orders, 2)
    assert told["stored_in"] == [str(tmp_path / "second" / orders.series)]
    assert "s3://b" in told["problems"][0]


def test_a_stage_that_lost_its_folder_and_the_first_region_goes_on_from_the_second(tmp_path):
    orders = orders_of(tmp_path)
    stage = stage_of(tmp_path / "gpus_8", orders)
    uploaded(stage, orders, 2, 4)
    wanted = manifest.read(stage / "checkpoints" / "step_00000004").digest
    shutil.rmtree(stage / "checkpoints")
    shutil.rmtree(tmp_path / "first")
    found = restore(stage, read_config(stage))
    assert manifest.read(found.verified).digest == wanted
    assert found.place == str(tmp_path / "second" / orders.series)


def test_a_damaged_newest_is_put_aside_and_the_lost_steps_are_counted(tmp_path):
    orders = orders_of(tmp_path)
    stage = stage_of(tmp_path / "gpus_8", orders)
    uploaded(stage, orders, 2, 4)
    (stage / "checkpoints" / "step_00000004" / "index").write_text("another")
    for series in places(orders):
        (series.objects.root / series.name / "checkpoints" / "step_00000004.json").unlink()
    found = restore(stage, read_config(stage))
    assert (found.verified.name, found.lost_steps) == ("step_00000002", 2)
    assert "step_00000004" in manifest.quarantined(stage / "checkpoints")
    assert "SHA-256" in found.passed_over[0] or "bytes" in found.passed_over[0]


def test_what_was_set_aside_is_not_fetched_again_and_leaves_the_store(tmp_path):
    orders = orders_of(tmp_path)
    stage = stage_of(tmp_path / "gpus_8", orders)
    uploaded(stage, orders, 2, 4)
    moment = manifest.read(stage / "checkpoints" / "step_00000004").time + 1e-6
    shutil.rmtree(stage / "checkpoints" / "step_00000004")
    orders = dataclasses.replace(orders, set_aside=((2, moment),))
    trained.order(stage, trained.span(1, 10, 4), store=orders)
    assert restore(stage, read_config(stage)).verified.name == "step_00000002"
    uploaded(stage, orders, 3, seed=1)
    for series in places(orders):
        assert series.steps() == [2, 3]
    assert keep.quarantined(places(orders)[0]) == {4: ["its stage was set back to before this step"]}
    uploaded(stage, orders, 4, seed=1)  # written anew since then
    assert places(orders)[0].steps() == [3, 4]


def test_a_stage_that_recorded_nothing_asks_no_store(tmp_path):
    orders = orders_of(tmp_path, place=Place("s3", bucket="b", endpoint="http://127.0.0.1:9"))
    trained.order(tmp_path / "gpus_8", trained.span(1, 10, 4), store=orders)
    assert restore(tmp_path / "gpus_8", read_config(tmp_path / "gpus_8")).verified is None


class Malicious:
    """What runs a program when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (os.mkdir, (str(self.file),))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """A job of 12 steps; and one of 8 that lost its region, with code planted in its index, going on to 12."""
    root = tmp_path_factory.mktemp("jobs")
    every = trained.Checkpointing(every_steps=2, keep=2)
    whole = trained.order(root / "a" / "gpus_8", trained.span(1, 12, 4), checkpointing=every)
    torn = trained.order(root / "b" / "gpus_8", trained.span(1, 8, 4), checkpointing=every, store=orders_of(root))
    ends = trained.run(whole, torn)
    before = trained.records(torn, "stored")
    shutil.rmtree(root / "first")
    for step in torn.glob("checkpoints/step_*"):
        if step.name != "step_00000008":
            shutil.rmtree(step)
    (torn / "checkpoints" / "step_00000008" / ".metadata").write_bytes(pickle.dumps(Malicious(root / "ran")))
    trained.order(torn, trained.span(1, 12, 4), checkpointing=every, store=orders_of(root))
    return whole, torn, ends, before, trained.run(torn)


def test_a_real_job_stores_beside_training_and_says_how_old_the_stored_state_is(jobs):
    _, _, ends, before, _ = jobs
    assert [end["code"] for end in ends] == [0, 0]
    assert before[-1]["step"] == 8 and before[-1]["replica_step"] == 8
    assert len(before[-1]["stored_in"]) == 1
    assert ends[1]["orphan_seconds"] < 1


def test_a_real_job_is_found_in_the_second_region_with_the_same_losses(jobs):
    whole, torn, _, _, (again,) = jobs
    assert again["code"] == 0, again["said"]
    header = trained.records(torn, "header")[-1]
    assert header["resumed_from"]["step"] == 8 and "second" in header["resumed_place"]
    assert {n: r["loss"] for n, r in trained.steps(whole).items()} == {
        n: r["loss"] for n, r in trained.steps(torn).items()
    }


def test_code_planted_in_an_index_is_put_aside_unread(jobs):
    _, torn, *_ = jobs
    assert not (torn.parents[1] / "ran").exists()
    assert ".metadata has" in manifest.quarantined(torn / "checkpoints")["step_00000008"]
