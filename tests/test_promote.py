"""Promotion: by gates or by a person, of a sound checkpoint only, once."""

import signal
from pathlib import Path

import pytest
from running import KILL_AT, in_process, state_of, until

from tasks.errors import CheckpointUnsound, GateFailed, StageRefused
from tasks.launch import launch
from tasks.promote import override, promote
from tasks.stage_dir import read_json, write_json
from training import manifest
from training.store import FolderStore


def grant(stage, outcome="PASS"):
    write_json(stage.verdict, {"outcome": outcome, "checks": [{"gate": "finite_loss", "outcome": outcome}]})
    return stage


@pytest.fixture
def trained(begin):
    stage = begin()
    launch(stage)
    until(lambda: state_of(stage) == "succeeded")
    return stage


def test_a_promotion_says_what_was_kept_where_by_whom_and_why(trained, scaleup_home):
    promotion = promote(grant(trained))
    assert promotion == read_json(trained.promotion)
    assert (promotion["by"], promotion["person"], promotion["kind"]) == ("gates", None, "rehearsal")
    assert promotion["because"] == "all 1 checks passed"
    kept = promotion["checkpoint"]
    assert (kept["step"], kept["purpose"], kept["tokens"]) == (30, "hand_over", 30 * 16 * 8)
    assert kept["path"] == str(scaleup_home / "store" / "tiny" / "run_1" / "gpus_8" / "step_00000030")
    assert manifest.verify(Path(kept["path"])) == []
    assert manifest.read(Path(kept["path"])).digest == kept["manifest_sha256"]
    assert FolderStore(scaleup_home / "store").pinned(kept["key"]) == "promoted by gates: all 1 checks passed"


def test_a_second_promotion_is_the_first(trained):
    first = promote(grant(trained))
    assert promote(trained) == first
    assert override(trained, "late", "mo") == first


@pytest.mark.parametrize("outcome", ["FAIL", "INVALID", "NEED_MORE_DATA"])
def test_only_pass_promotes(trained, outcome):
    with pytest.raises(
        GateFailed, match=f"gpus_8 has the verdict {outcome}; only PASS promotes.*scaleup promote tiny/"
    ):
        promote(grant(trained, outcome))
    assert not trained.promotion.exists()


def test_no_verdict_is_no_pass(trained):
    with pytest.raises(GateFailed, match="gpus_8 has no verdict"):
        promote(trained)


def test_a_person_promotes_with_name_and_reason(trained):
    grant(trained, "FAIL")
    promotion = override(trained, "the spike was a bad node", "mo")
    assert (promotion["by"], promotion["person"]) == ("person", "mo")
    assert (promotion["because"], promotion["verdict"]) == ("the spike was a bad node", "FAIL")
    assert manifest.verify(Path(promotion["checkpoint"]["path"])) == []


def test_a_person_must_say_why(trained):
    with pytest.raises(StageRefused, match="say why gpus_8 is to be promoted: --because"):
        override(trained, "  ", "mo")


def test_not_even_a_person_promotes_an_unsound_checkpoint(trained):
    (trained.checkpoints / "00000030.state").unlink()
    with pytest.raises(CheckpointUnsound, match=r"recorded a checkpoint at .*00000030\.state; nothing is there"):
        override(trained, "I am sure", "mo")
    assert not trained.promotion.exists()


def test_a_stage_whose_trainer_wrote_no_hand_over_names_what_there_is(trained):
    lines = trained.metrics.read_text().splitlines(keepends=True)
    trained.metrics.write_text("".join(line for line in lines if '"step": 30, "path"' not in line))
    with pytest.raises(CheckpointUnsound, match="no hand_over checkpoint of step 30: whole are those of steps 40"):
        promote(grant(trained))


def ours(stage, step=30, purpose="hand_over"):
    """Write a checkpoint of our own format, as the trainer does."""
    folder = stage.checkpoints / manifest.folder_name(step)
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"w" * 1000)
    manifest.write(folder, step=step, tokens=step * 128, purpose=purpose, world=8, config_digest="")
    return folder


def test_a_flipped_bit_is_found_before_anything_is_promoted(trained, scaleup_home):
    folder = ours(trained)
    data = bytearray((folder / "weights").read_bytes())
    data[500] ^= 1
    (folder / "weights").write_bytes(data)
    with pytest.raises(CheckpointUnsound, match=r"gpus_8 cannot be promoted: .*weights has SHA-256"):
        promote(grant(trained))
    assert not trained.promotion.exists()
    assert not (scaleup_home / "store").exists()


def test_our_own_format_is_kept_as_it_is(trained):
    folder = ours(trained)
    kept = promote(grant(trained))["checkpoint"]
    assert kept["entry"] is None
    assert kept["manifest_sha256"] == manifest.read(folder).digest


def test_the_last_stage_hands_nothing_over_and_keeps_its_end(trained):
    last = trained.run.stage("gpus_64")
    promote(grant(trained))
    write_json(last.forecast, {"outcome": "PASS", "checks": []})
    launch(last)
    until(lambda: state_of(last) == "succeeded")
    kept = promote(grant(last))["checkpoint"]
    assert (kept["step"], kept["purpose"]) == (70, "final")


BOUNDARIES = {
    "the foreign checkpoint is beside its manifest": "from training import manifest\nafter(manifest, 'write', 1)",
    "the hand-over has its name": "from training import manifest\nafter(manifest, 'publish', 1)",
    "it is in the store": "from training.store import FolderStore\nafter(FolderStore, 'put', 1)",
    "it is pinned": "from training.store import FolderStore\nafter(FolderStore, 'pin', 1)",
    "promotion.json is written": "import tasks.promote\nafter(tasks.promote, 'write_json', 1)",
}


def test_a_promotion_killed_at_any_boundary_and_repeated_is_one_promotion(trained, scaleup_home):
    grant(trained)
    for boundary, text in BOUNDARIES.items():
        killed = in_process(trained, "from tasks.promote import promote; promote(stage)", KILL_AT + text)
        assert killed.returncode == -signal.SIGKILL, f"{boundary}: {killed.stderr}"
    promotion = promote(trained)
    store = scaleup_home / "store" / "tiny" / "run_1" / "gpus_8"
    assert sorted(p.name for p in store.iterdir()) == ["step_00000030", "step_00000030.pinned"]
    assert manifest.verify(Path(promotion["checkpoint"]["path"])) == []
    assert promotion == read_json(trained.promotion)


def test_leave_for_a_stage_that_its_forecast_refused(begin):
    stage = begin()
    write_json(stage.forecast, {"outcome": "FAIL", "checks": []})
    record = override(stage, "the network was mended", "mo")
    assert record["kind"] == "leave"
    assert read_json(stage.leave)["person"] == "mo"
    assert not stage.promotion.exists()  # leave to train is no leave to go further up
    launch(stage)
    until(lambda: state_of(stage) == "succeeded")


def test_no_leave_where_nothing_stands_against_a_stage(begin):
    with pytest.raises(StageRefused, match="nothing stands against gpus_8"):
        override(begin(), "why not", "mo")


def test_a_running_stage_is_not_promoted(running):
    with pytest.raises(StageRefused, match=r"gpus_8 is not over \(running\)"):
        override(running(), "now", "mo")


def test_a_stage_promoted_over_its_failed_job_is_not_trained_again(begin):
    stage = begin(settings={"fail_at": 33})
    job = launch(stage)
    until(lambda: state_of(stage) == "failed")
    override(stage, "the end was not needed", "mo")
    assert launch(stage) == job
