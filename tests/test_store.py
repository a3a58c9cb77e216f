"""A store takes a checkpoint whole or not at all, gives it back byte for byte, and shares what did not change."""

import dataclasses
import itertools
import threading

import pytest
from s3_servers import CREDENTIALS, s3_server
from stores import KIB, checkpoint, contents, folder_settings, s3_settings, series_of

from training import manifest
from training.store import Absent, StoreError, StoreSettings, Taken, fetch, keep, problems, put
from training.store.chunks import Chunk

numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(params=["folder", "s3"])
def settings(request, tmp_path, server, monkeypatch):
    """Settings of an empty store, in a folder and on a server that checks signatures."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    if request.param == "folder":
        return folder_settings(tmp_path / "store")
    return s3_settings(server, prefix=f"store_{next(numbers)}")


def test_what_went_in_comes_out_byte_for_byte_and_a_second_put_writes_nothing(settings, tmp_path):
    series = series_of(settings)
    folder = checkpoint(tmp_path / "here", 70, purpose="hand_over")
    written = put(series, folder)
    assert written.new_objects > 4
    assert series.steps() == [70]
    assert (written.pointer.tokens, written.pointer.world, written.pointer.purpose) == (2240, 8, "hand_over")
    before = dict(series.objects.listed(""))
    again = put(series, folder)
    assert (again.new_objects, again.pointer) == (0, written.pointer)
    assert dict(series.objects.listed("")) == before
    assert contents(fetch(series, 70, tmp_path / "there")) == contents(folder)
    assert problems(series, 70) == []
    with pytest.raises(Absent):
        fetch(series, 71, tmp_path / "there")


def test_chunks_that_an_earlier_checkpoint_has_are_not_written_again(settings, tmp_path):
    series = series_of(settings)
    put(series, checkpoint(tmp_path / "here", 10))
    first = series.stored_chunks()
    put(series, checkpoint(tmp_path / "here", 20))
    frozen = {chunk.object for chunk in series.stored_manifest(series.pointer(10)).files["shards/1.distcp"]}
    assert frozen == {chunk.object for chunk in series.stored_manifest(series.pointer(20)).files["shards/1.distcp"]}
    assert len(series.stored_chunks()) < 2 * len(first)


def test_deltas_rest_on_one_full_checkpoint_every_n(settings, tmp_path):
    series = series_of(dataclasses.replace(settings, coding="delta", full_every=3))
    written = [put(series, checkpoint(tmp_path / "here", step)) for step in (1, 2, 3, 4, 5)]
    assert [one.full for one in written] == [True, False, False, True, False]
    of = {step: series.stored_manifest(series.pointer(step)) for step in series.steps()}
    assert [of[step].base for step in (2, 3, 5)] == [of[1].digest, of[1].digest, of[4].digest]
    deltas = [chunk for chunk in of[3].files["shards/0.distcp"] if chunk.coding == "delta"]
    assert deltas and all(chunk.base is not None and chunk.base.base is None for chunk in deltas)
    assert not [chunk for chunk in of[4].chunks if chunk.coding == "delta"]
    for step in series.steps():
        assert contents(fetch(series, step, tmp_path / "there")) == contents(
            tmp_path / "here" / manifest.folder_name(step)
        )


def test_a_delta_is_made_from_the_local_base_without_reading_the_store(tmp_path):
    settings = folder_settings(tmp_path / "store", coding="delta")
    base = checkpoint(tmp_path / "here", 1)
    put(series_of(settings), base)
    reading = []

    class Counting(type(series_of(settings).objects)):
        def get(self, key):
            reading.append(key)
            return super().get(key)

    counted = dataclasses.replace(series_of(settings), objects=Counting(tmp_path / "store"))
    put(counted, checkpoint(tmp_path / "here", 2), base_folder=base)
    assert not [key for key in reading if "/chunks/" in key]
    reading.clear()
    (base / "shards" / "0.distcp").write_bytes(b"changed since")
    put(counted, checkpoint(tmp_path / "here", 3), base_folder=base)
    assert [key for key in reading if "/chunks/" in key]
    assert problems(counted, 3) == []


def test_an_unsound_folder_leaves_nothing_behind(settings, tmp_path):
    series = series_of(settings)
    folder = checkpoint(tmp_path / "here", 70)
    (folder / "index").write_text("step 71\n")
    with pytest.raises(StoreError, match=r"is not a sound checkpoint: .*index has SHA-256"):
        put(series, folder)
    assert series.steps() == [] and series.stored_chunks() == {}


def test_another_checkpoint_of_the_same_step_is_refused_unless_it_is_said(settings, tmp_path):
    series = series_of(settings)
    put(series, checkpoint(tmp_path / "one", 70))
    other = checkpoint(tmp_path / "two", 70, seed=1)
    with pytest.raises(Taken, match="already holds another checkpoint of step 70"):
        put(series, other)
    put(series, other, replace=True)
    assert contents(fetch(series, 70, tmp_path / "there")) == contents(other)


def test_pruning_keeps_what_it_must_and_takes_the_chunks_along(settings, tmp_path):
    series = series_of(dataclasses.replace(settings, coding="delta", full_every=2))
    for step, purpose in {1: "periodic", 2: "periodic", 3: "hand_over", 4: "periodic", 5: "periodic"}.items():
        put(series, checkpoint(tmp_path / "here", step, purpose=purpose))
    keep.pin(series, series.pointer(1), {"because": "promoted"})
    assert keep.prune(series, keep=1) == [2, 4]
    assert series.steps() == [1, 3, 5]
    for step in series.steps():
        assert problems(series, step) == []
    needed = {part.object for step in series.steps() for part in series.stored_manifest(series.pointer(step)).chunks}
    assert set(series.stored_chunks()) == needed
    keep.unpin(series, 1)
    assert keep.prune(series, keep=1) == [1]
    assert [problems(series, step) for step in series.steps()] == [[], []]


def test_a_pin_that_comes_while_a_pruner_runs_keeps_its_checkpoint(tmp_path):
    """The pruner has looked at the pins; the promotion pins and finds the pointer; only then the pointer goes."""
    series = series_of(folder_settings(tmp_path / "store"))
    for step in (1, 2):
        put(series, checkpoint(tmp_path / "here", step))
    found, objects = series.pointer(1), type(series.objects)

    class Late(objects):
        def delete(self, keys):
            named = list(keys)
            if any(key.endswith("checkpoints/step_00000001.json") for key in named):
                keep.pin(series, found, {"because": "promoted"})
            super().delete(named)

    assert keep.prune(dataclasses.replace(series, objects=Late(tmp_path / "store")), keep=1) == []
    assert series.steps() == [1, 2] and problems(series, 1) == []
    keep.unpin(series, 1)
    assert keep.prune(series, keep=1) == [1]
    with pytest.raises(Absent):
        keep.pin(series, found, {"because": "too late"})


def test_several_writers_of_different_series_do_not_meet(settings, tmp_path):
    folders = [checkpoint(tmp_path / str(seed), 5, seed=seed) for seed in range(3)]
    each = [threading.Thread(target=put, args=(series_of(settings, f"run/{n}"), f)) for n, f in enumerate(folders)]
    for one in each:
        one.start()
    for one in each:
        one.join()
    for number, folder in enumerate(folders):
        assert contents(fetch(series_of(settings, f"run/{number}"), 5, tmp_path / f"out{number}")) == contents(folder)


@pytest.mark.parametrize("name", ["", "../x", "/etc/x", "a/../../b", "a/.hidden", "a//b"])
def test_names_do_not_lead_out_of_the_store(tmp_path, name):
    with pytest.raises(StoreError, match="is no key"):
        series_of(folder_settings(tmp_path), name)


def test_a_manifest_whose_files_lie_elsewhere_is_refused(tmp_path):
    folder = checkpoint(tmp_path, 1)
    text = (folder / "manifest.json").read_text().replace('"index"', '"../../index"')
    with pytest.raises(manifest.ManifestError, match="not inside of a checkpoint"):
        manifest.parse(text.encode(), "x")


def test_settings_go_to_a_job_and_back(settings):
    whole = dataclasses.replace(settings, replica=settings.place, mib_per_second=3.5, coding="delta")
    assert StoreSettings.from_json(whole.to_json()) == whole
    with pytest.raises(StoreError, match="no settings of a store"):
        StoreSettings.from_json({**whole.to_json(), "colour": "red"})


@pytest.mark.parametrize(
    "said",
    [
        [], ["x" * 64, 1, "0" * 64, 1, "raw"], ["0" * 64, -1, "0" * 64, 1, "raw"], ["0" * 64, 1, "0" * 64, 1, "delta"],
        ["0" * 64, 1, "0" * 64, 1, "zip"], ["0" * 64, 1, "0" * 64, 1, "raw", ["0" * 64, 1, "0" * 64, 1, "raw"]],
        ["0" * 64, 1, "0" * 64, 1, "delta", ["0" * 64, 1, "0" * 64, 1, "delta", ["0" * 64, 1, "0" * 64, 1, "raw"]]],
    ],
)  # fmt: skip
def test_what_is_no_chunk_is_refused(said):
    with pytest.raises(ValueError, match="is no"):
        Chunk.from_json(said)


def test_large_chunks_go_up_in_parts(server, tmp_path, monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    settings = s3_settings(server, prefix="parts", chunk_mib=64 * KIB, part_mib=8 * KIB, coding="raw")
    folder = checkpoint(tmp_path / "here", 1, numbers=16000)
    put(series_of(settings), folder)
    assert "Multipart" not in (server.folder / "log.txt").read_text()
    assert contents(fetch(series_of(settings), 1, tmp_path / "there")) == contents(folder)
