"""A checkpoint at rest: its sums find every kind of damage, and pruning knows what must stay."""

import json
import os
from pathlib import Path

import pytest

from training import manifest


def checkpoint(parent: Path, step: int, purpose: manifest.Purpose = "periodic") -> Path:
    folder = parent / manifest.folder_name(step)
    (folder / "shards").mkdir(parents=True)
    (folder / "shards" / "0.bin").write_bytes(bytes(range(256)) * step)
    (folder / "index").write_text("one\n")
    manifest.write(folder, step=step, tokens=32 * step, purpose=purpose, world=8, config_digest="c")
    return folder


def test_a_manifest_says_what_was_written_and_a_sound_folder_has_no_problems(tmp_path):
    folder = checkpoint(tmp_path, 7, "hand_over")
    found = manifest.read(folder)
    assert (found.step, found.tokens, found.purpose, found.world, found.config_digest) == (7, 224, "hand_over", 8, "c")
    assert set(found.files) == {"shards/0.bin", "index"}
    assert found.bytes == 256 * 7 + 4
    assert found.folder == folder
    assert manifest.verify(folder) == []


def test_each_kind_of_damage_is_named(tmp_path):
    damage = {
        "is missing": lambda f: (f / "index").unlink(),
        "has 5 bytes, the manifest says 4": lambda f: (f / "index").write_text("four\n"),
        "has SHA-256": lambda f: (f / "index").write_text("two\n"),
        "more is not in the manifest": lambda f: (f / "more").write_text("x"),
        "no manifest.json": lambda f: (f / "manifest.json").unlink(),
        "is not a manifest": lambda f: (f / "manifest.json").write_text('{"step": 1}'),
    }
    for number, (sentence, do) in enumerate(damage.items(), start=1):
        folder = checkpoint(tmp_path / str(number), number)
        do(folder)
        (problem,) = manifest.verify(folder)
        assert sentence in problem
        assert str(folder) in problem


def test_every_single_flipped_byte_is_found(tmp_path):
    folder = checkpoint(tmp_path, 1)
    path = folder / "shards" / "0.bin"
    sound = path.read_bytes()
    for place in range(0, len(sound), 17):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        assert len(manifest.verify(folder)) == 1
    path.write_bytes(sound)
    assert manifest.verify(folder) == []


def test_a_changed_manifest_has_another_digest_and_another_schema_is_refused(tmp_path):
    folder = checkpoint(tmp_path, 1)
    before = manifest.read(folder).digest
    plain = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**plain, "tokens": 33}))
    assert manifest.read(folder).digest != before
    (folder / "manifest.json").write_text(json.dumps({**plain, "schema": 9}))
    with pytest.raises(manifest.ManifestError, match="schema 9; this version reads schema 1"):
        manifest.read(folder)


def test_whole_lists_by_step_and_leaves_out_what_has_no_manifest(tmp_path):
    for step in (30, 9, 200):
        checkpoint(tmp_path, step)
    (tmp_path / "step_00000031").mkdir()
    (tmp_path / ".step_00000032.writing").mkdir()
    assert [m.step for m in manifest.whole(tmp_path)] == [9, 30, 200]
    assert manifest.whole(tmp_path / "absent") == []


def test_pruning_keeps_hand_overs_finals_and_pinned_ones(tmp_path):
    for step in (10, 20, 30, 40, 50):
        checkpoint(tmp_path, step)
    checkpoint(tmp_path, 25, "hand_over")
    checkpoint(tmp_path, 60, "final")
    manifest.pin(tmp_path / manifest.folder_name(10), "promoted")
    removed = manifest.prune(tmp_path, keep=2)
    assert [path.name for path in removed] == ["step_00000020", "step_00000030"]
    assert [m.step for m in manifest.whole(tmp_path)] == [10, 25, 40, 50, 60]
    assert manifest.pinned(tmp_path / manifest.folder_name(10)) == "promoted"
    manifest.unpin(tmp_path / manifest.folder_name(10))
    assert manifest.prune(tmp_path, keep=2) == [tmp_path / manifest.folder_name(10)]


def test_publishing_replaces_only_what_is_not_sound(tmp_path):
    kept = checkpoint(tmp_path, 5)
    again = checkpoint(tmp_path / "again", 5)
    inode = kept.stat().st_ino
    assert manifest.publish(again, kept) == kept
    assert kept.stat().st_ino == inode, "the same content was written twice: the first stays"
    assert not again.exists()
    os.truncate(kept / "index", 1)
    better = checkpoint(tmp_path / "better", 5)
    manifest.publish(better, kept)
    assert manifest.verify(kept) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "better", "step_00000005"]


def test_an_empty_folder_and_an_unknown_purpose_are_refused(tmp_path):
    with pytest.raises(manifest.ManifestError, match="holds no file"):
        manifest.write(tmp_path, step=1, tokens=1, purpose="final", world=1, config_digest="")
    with pytest.raises(manifest.ManifestError, match="purpose 'last' is none of periodic, hand_over, final"):
        manifest.write(tmp_path, step=1, tokens=1, purpose="last", world=1, config_digest="")  # type: ignore[arg-type]
