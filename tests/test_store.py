"""A store takes a checkpoint whole or not at all, once, and says why it does not."""

import os
import subprocess
from pathlib import Path

import pytest

from training import manifest
from training.store import FolderStore, StoreError

KEY = "gpt_stdlib/20260101_000000/gpus_8/step_00000070"


def checkpoint(folder: Path, content: str = "weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_text(content)
    (folder / "optimizer.bin").write_bytes(os.urandom(1000))
    manifest.write(folder, step=70, tokens=1, purpose="hand_over", world=8, config_digest="c")
    return folder


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_put_checkpoint_is_sound_and_a_second_put_changes_nothing(tmp_path):
    store = FolderStore(tmp_path / "store")
    source = checkpoint(tmp_path / "step_00000070")
    assert not store.exists(KEY)
    place = store.put(source, KEY)
    assert store.exists(KEY)
    assert store.verify(KEY) == []
    assert manifest.read(place).digest == manifest.read(source).digest
    inode = place.stat().st_ino
    assert store.put(source, KEY) == place
    assert place.stat().st_ino == inode
    assert everything_in(store.root) == [f"{KEY}/{name}" for name in ("manifest.json", "optimizer.bin", "weights.bin")]


def test_an_unsound_source_leaves_nothing_behind(tmp_path):
    store = FolderStore(tmp_path / "store")
    source = checkpoint(tmp_path / "step_00000070")
    (source / "weights.bin").write_text("Weights")
    with pytest.raises(StoreError, match=r"is not a sound checkpoint: .*weights\.bin has SHA-256"):
        store.put(source, KEY)
    assert not store.exists(KEY)
    assert not store.root.exists()


def test_a_damaged_copy_is_replaced_and_another_content_is_refused(tmp_path):
    store = FolderStore(tmp_path / "store")
    source = checkpoint(tmp_path / "one")
    place = store.put(source, KEY)
    (place / "weights.bin").unlink()
    assert len(store.verify(KEY)) == 1
    store.put(source, KEY)
    assert store.verify(KEY) == []
    with pytest.raises(StoreError, match="already holds another checkpoint"):
        store.put(checkpoint(tmp_path / "two", "others"), KEY)
    assert (place / "weights.bin").read_text() == "weights"


def test_what_a_dead_process_left_unfinished_is_cleared(tmp_path):
    store = FolderStore(tmp_path / "store")
    source = checkpoint(tmp_path / "one")
    dead = subprocess.Popen(["true"])
    dead.wait()
    place = store.path(KEY)
    abandoned = place.with_name(f".{place.name}.incoming.{os.uname().nodename}.{dead.pid}")
    abandoned.mkdir(parents=True)
    (abandoned / "weights.bin").write_text("wei")
    assert not store.exists(KEY)
    store.put(source, KEY)
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_pins_are_beside_the_checkpoint_and_need_one(tmp_path):
    store = FolderStore(tmp_path / "store")
    with pytest.raises(StoreError, match="holds no checkpoint that could be pinned"):
        store.pin(KEY)
    place = store.put(checkpoint(tmp_path / "one"), KEY)
    store.pin(KEY, "promoted by gates")
    assert store.pinned(KEY) == "promoted by gates"
    assert store.verify(KEY) == []
    assert manifest.pinned(place) == "promoted by gates"


@pytest.mark.parametrize("key", ["", "../x", "/etc/x", "a/../../b", "a/.hidden"])
def test_keys_do_not_lead_out_of_the_store(tmp_path, key):
    with pytest.raises(StoreError, match="is no key"):
        FolderStore(tmp_path).path(key)
