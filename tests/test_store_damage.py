"""A hundred planted corruptions: each is found, named, put aside, and an older whole checkpoint is taken."""

import dataclasses
import os
import random
import shutil
from pathlib import Path

import pytest
from s3_servers import CREDENTIALS, s3_server
from stores import KIB, checkpoint, contents, folder_settings, s3_settings, series_of

from training import manifest
from training.store import Damaged, Unreachable, fetch, keep, newest_whole, pointer, problems, put

EACH = 10  # plantings of each kind on a folder: with the three kinds of each local tier and S3 more than a hundred


@pytest.fixture(autouse=True)
def no_power_failure(monkeypatch):
    """What is on the disk when the power goes is not asked here, and thousands of fsyncs take a minute."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Four checkpoints as a trainer leaves them, and another stage's of the same steps."""
    folder = tmp_path_factory.mktemp("made")
    for step in (10, 20, 30, 40):
        checkpoint(folder / "ours", step, numbers=1500)
        checkpoint(folder / "theirs", step, numbers=1500, world=64, seed=1)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


def filled(settings, made, name="gpt/run_1/gpus_8", whose="ours"):
    series = series_of(settings, name)
    for folder in sorted((made / whose).iterdir()):
        put(series, folder)
    return series


def own_chunks(series, step, other):
    """Return keys of chunks that one checkpoint has and an older one does not need: that one stays whole."""
    needed = {chunk.object for chunk in series.stored_manifest(series.pointer(other)).chunks}
    mine = {chunk.object for chunk in series.stored_manifest(series.pointer(step)).chunks} - needed
    return [f"{series.name}/chunks/{name[:2]}/{name}" for name in sorted(mine)]


def flip(series, chosen):
    key = chosen.choice(own_chunks(series, 40, 30))
    data = bytearray(series.objects.get(key))
    data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
    series.objects.put(key, bytes(data))


def cut(series, chosen):
    key = chosen.choice(own_chunks(series, 40, 30))
    data = series.objects.get(key)
    series.objects.put(key, data[: chosen.randrange(len(data))])


def lose(series, chosen):
    series.objects.delete([chosen.choice(own_chunks(series, 40, 30))])


def exchange(series, chosen):
    one, other = chosen.sample(own_chunks(series, 40, 30), 2)
    first, second = series.objects.get(one), series.objects.get(other)
    series.objects.put(one, second)
    series.objects.put(other, first)


def reorder(series, chosen):
    """Two chunks of a file change places in the stored manifest, and everything but the files' own sums agrees."""
    found = series.pointer(40)
    stored = series.stored_manifest(found)
    made_of = list(stored.files["shards/0.distcp"])
    same = [n for n, chunk in enumerate(made_of) if chunk.size == made_of[0].size]
    one, other = chosen.sample(same, 2)
    made_of[one], made_of[other] = made_of[other], made_of[one]
    forged = pointer.StoredManifest(stored.series, stored.manifest, {**stored.files, "shards/0.distcp": tuple(made_of)})
    series.objects.put(pointer.manifest_key(series.name, forged.digest), forged.to_bytes())
    series.objects.put(pointer.pointer_key(series.name, 40), pointer.Pointer.of(forged).to_bytes())


def stale(series, chosen):
    """The newest name points to an older checkpoint."""
    older = series.objects.get(pointer.pointer_key(series.name, chosen.choice([10, 20, 30])))
    series.objects.put(pointer.pointer_key(series.name, 40), older)


def half_stale(series, chosen):
    """As a server that mixes two versions: this step's name and facts, an older stored manifest."""
    older = series.pointer(chosen.choice([10, 20, 30])).stored_manifest
    found = series.pointer(40)
    mixed = pointer.Pointer(**{**vars(found), "stored_manifest": older})
    series.objects.put(pointer.pointer_key(series.name, 40), mixed.to_bytes())


def other_world(series, chosen):
    """Another stage's checkpoint of the same step, 64 ranks, under this stage's name."""
    theirs = f"{series.name.rpartition('/')[0]}/gpus_64"
    if chosen.random() < 0.5:
        series.objects.put(pointer.pointer_key(series.name, 40), series.objects.get(pointer.pointer_key(theirs, 40)))
    else:
        found = series.objects.get(pointer.pointer_key(series.name, 40))
        series.objects.put(pointer.pointer_key(series.name, 40), found.replace(b'"world": 8', b'"world": 64'))


def lose_manifest(series, chosen):
    series.objects.delete([pointer.manifest_key(series.name, series.pointer(40).stored_manifest)])


def alter_manifest(series, chosen):
    key = pointer.manifest_key(series.name, series.pointer(40).stored_manifest)
    data = bytearray(series.objects.get(key))
    data[chosen.randrange(len(data))] ^= 1
    series.objects.put(key, bytes(data))


PLANTED = [flip, cut, lose, exchange, reorder, stale, half_stale, other_world, lose_manifest, alter_manifest]


def found_and_fallen_back_from(series, made, tmp_path, number):
    """Assert that the damage is reported, that 30 is taken instead, and that 40 is out of sight with its reason."""
    assert problems(series, 40), number
    with pytest.raises(Damaged):
        fetch(series, 40, tmp_path / f"no_{number}")
    assert not list((tmp_path / f"no_{number}").glob("*")), "nothing half-fetched stays"
    local = tmp_path / f"local_{number}"
    found = newest_whole(local, [series])
    assert (found.checkpoint.step, found.lost_steps) == (30, 10)
    assert contents(local / manifest.folder_name(30)) == contents(made / "ours" / manifest.folder_name(30))
    assert [one.step for one in found.passed_over] == [40]
    assert series.steps() == [10, 20, 30]
    assert keep.quarantined(series)[40]
    put(
        series, made / "ours" / manifest.folder_name(40)
    )  # the trainer comes to step 40 again: nothing damaged is reused
    assert problems(series, 40) == []


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_corruption_in_a_folder_is_found(plant, made, tmp_path):
    series = filled(folder_settings(tmp_path / "store", chunk_mib=2 * KIB, parallel=2), made)
    filled(folder_settings(tmp_path / "store"), made, "gpt/run_1/gpus_64", "theirs")
    chosen = random.Random(plant.__name__)
    for number in range(EACH):
        plant(series, chosen)
        found_and_fallen_back_from(series, made, tmp_path, number)


@pytest.mark.parametrize("plant", [flip, cut, lose, exchange, stale, other_world], ids=lambda plant: plant.__name__)
def test_planted_corruption_on_s3_is_found(plant, made, tmp_path, server, monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    settings = s3_settings(server, prefix=plant.__name__)
    series = filled(settings, made)
    filled(settings, made, "gpt/run_1/gpus_64", "theirs")
    plant(series, random.Random(plant.__name__))
    found_and_fallen_back_from(series, made, tmp_path, 0)


def test_a_damaged_base_takes_its_deltas_along_and_the_full_one_before_is_taken(made, tmp_path):
    series = filled(folder_settings(tmp_path / "store", coding="delta", full_every=2), made)
    assert series.stored_manifest(series.pointer(40)).base == series.pointer(30).stored_manifest
    based = next(chunk.base for chunk in series.stored_manifest(series.pointer(40)).chunks if chunk.base)
    series.objects.delete([f"{series.name}/chunks/{based.object[:2]}/{based.object}"])
    found = newest_whole(tmp_path / "local", [series])
    assert (found.checkpoint.step, found.lost_steps) == (20, 20)
    assert sorted(keep.quarantined(series)) == [30, 40]


@pytest.mark.parametrize("step", range(3))
def test_local_damage_is_put_aside_and_the_store_s_copy_of_the_same_step_is_taken(step, made, tmp_path):
    series = filled(folder_settings(tmp_path / "store"), made)
    local = tmp_path / "checkpoints"
    for number in (30, 40):
        put_back(made, local, number)
    folder = local / manifest.folder_name(40)
    spoil = [
        lambda: (folder / "index").write_bytes(b"step 41\n"),
        lambda: (folder / "shards" / "0.distcp").unlink(),
        lambda: (folder / "manifest.json").write_bytes((local / "step_00000030" / "manifest.json").read_bytes()),
    ][step]
    spoil()
    found = newest_whole(local, [series])
    assert (found.checkpoint.step, found.place, found.lost_steps) == (40, series.address, 0)
    assert [one.place for one in found.passed_over] == [str(local)]
    assert list(manifest.quarantined(local)) == [manifest.folder_name(40)]
    assert manifest.verify(folder) == []


def put_back(made: Path, local: Path, step: int) -> None:
    shutil.copytree(made / "ours" / manifest.folder_name(step), local / manifest.folder_name(step))


def test_the_nearest_whole_one_is_taken_and_a_second_region_before_an_older_step(made, tmp_path):
    near = filled(folder_settings(tmp_path / "near"), made)
    far = filled(folder_settings(tmp_path / "far"), made)
    local = tmp_path / "local"
    put_back(made, local, 30)
    assert newest_whole(local, [near, far]).place == near.address, "the newest step comes before the nearest place"
    put_back(made, tmp_path / "whole", 40)
    assert newest_whole(tmp_path / "whole", [near, far]).place == str(tmp_path / "whole")
    flip(near, random.Random(1))
    found = newest_whole(tmp_path / "local_2", [near, far])
    assert (found.checkpoint.step, found.place, found.lost_steps) == (40, far.address, 0)
    assert newest_whole(tmp_path / "local_3", [near], at_most=20).checkpoint.step == 20


def test_a_store_that_does_not_answer_is_not_an_empty_one(made, tmp_path, monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server(tmp_path) as gone:
        series = series_of(s3_settings(gone, retry_seconds=0.1))
    with pytest.raises(Unreachable, match="not every place answered"):
        newest_whole(tmp_path / "local", [series])
    put_back(made, tmp_path / "local", 20)
    assert newest_whole(tmp_path / "local", [series]).checkpoint.step == 20


def test_nothing_anywhere_is_a_beginning_and_nothing_whole_is_not(made, tmp_path):
    series = series_of(folder_settings(tmp_path / "store"))
    assert newest_whole(tmp_path / "local", [series]) is None
    put(series, made / "ours" / manifest.folder_name(10))
    series.objects.delete([pointer.manifest_key(series.name, series.pointer(10).stored_manifest)])
    with pytest.raises(Damaged, match="no checkpoint is whole"):
        newest_whole(tmp_path / "local", [series])


def test_a_reader_that_may_not_write_falls_back_all_the_same(made, tmp_path):
    series = filled(folder_settings(tmp_path / "store"), made)
    flip(series, random.Random(1))
    found = newest_whole(tmp_path / "local", [series], put_aside=False)
    assert found.checkpoint.step == 30 and series.steps() == [10, 20, 30, 40]


def test_what_was_pruned_while_it_was_read_is_not_damage(made, tmp_path):
    series = filled(folder_settings(tmp_path / "store"), made)
    victim = own_chunks(series, 40, 30)

    class Pruning(type(series.objects)):
        def get(self, key):
            if key in victim:
                self.delete([pointer.pointer_key(series.name, 40), *victim])
            return super().get(key)

    found = newest_whole(tmp_path / "local", [dataclasses.replace(series, objects=Pruning(tmp_path / "store"))])
    assert found.checkpoint.step == 30 and found.passed_over == ()
    assert keep.quarantined(series) == {}
