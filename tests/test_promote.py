"""Promotion: by gates or by a person, of a sound checkpoint only, once."""

import dataclasses
import shutil
import signal

import pytest
from running import KILL_AT, in_process, state_of, until

from tasks.errors import CheckpointUnsound, GateFailed, StageRefused
from tasks.launch import launch
from tasks.promote import override, promote
from tasks.promoted import fetched, series_name
from tasks.run import plan_of
from tasks.stage_dir import read_json, write_json
from training import manifest
from training.store import keep, open_series, problems, put


def grant(stage, outcome="PASS"):
    write_json(stage.verdict, {"outcome": outcome, "checks": [{"gate": "finite_loss", "outcome": outcome}]})
    return stage


def stored(stage):
    """Return the stage's series in its cluster's store."""
    return open_series(plan_of(stage).cluster.store.settings(), series_name(stage))


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
    series = stored(trained)
    assert kept["path"] == str(scaleup_home / "store" / "tiny/run_1/gpus_8/checkpoints/step_00000030.json")
    assert (kept["kept_in"], kept["not_kept_in"]) == ([series.address], {})
    assert problems(series, 30) == []
    assert series.pointer(30).stored_manifest == kept["stored_manifest"]
    assert keep.pinned(series, 30)["because"] == "all 1 checks passed"
    assert keep.prune(series, keep=0) == [] and series.steps() == [30]


def test_the_next_stage_fetches_the_very_bytes(trained, tmp_path):
    promotion = promote(grant(trained))
    folder = fetched(trained, promotion, plan_of(trained).cluster.store.settings(), tmp_path)
    assert folder == tmp_path / "step_00000030" and manifest.verify(folder) == []
    assert manifest.read(folder).digest == promotion["checkpoint"]["manifest_sha256"]


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
    assert problems(stored(trained), 30) == []


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
    "it is in the store": "from tasks import promoted\nafter(promoted, 'put', 1)",
    "it is pinned": "from training.store import keep\nafter(keep, 'pin', 1)",
    "promotion.json is written": "import tasks.promote\nafter(tasks.promote, 'write_json', 1)",
}


def test_a_promotion_killed_at_any_boundary_and_repeated_is_one_promotion(trained):
    grant(trained)
    for boundary, text in BOUNDARIES.items():
        killed = in_process(trained, "from tasks.promote import promote; promote(stage)", KILL_AT + text)
        assert killed.returncode == -signal.SIGKILL, f"{boundary}: {killed.stderr}"
    promotion = promote(trained)
    series = stored(trained)
    assert series.steps() == [30] and problems(series, 30) == []
    assert keep.pinned(series, 30) == promotion | {
        "stored_manifest": promotion["checkpoint"]["stored_manifest"],
        "series": series.name,
    }
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


@pytest.fixture
def two_regions(begin, configs, tmp_path):
    """A trained stage whose cluster has a second region and a key that seals promotions."""
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    configs.cluster(store={"path": "first", "replica": {"path": "second"}, "key_file": str(key)})
    stage = begin()
    launch(stage)
    until(lambda: state_of(stage) == "succeeded")
    return stage


def test_the_second_region_has_it_too_and_is_enough_when_the_first_is_lost(two_regions, scaleup_home, tmp_path):
    promotion = promote(grant(two_regions))
    regions = [str(scaleup_home / name / "tiny/run_1/gpus_8") for name in ("first", "second")]
    assert promotion["checkpoint"]["kept_in"] == regions
    shutil.rmtree(scaleup_home / "first")
    folder = fetched(two_regions, promotion, plan_of(two_regions).cluster.store.settings(), tmp_path / "there")
    assert manifest.read(folder).digest == promotion["checkpoint"]["manifest_sha256"]


def test_an_altered_promotion_is_refused_by_its_seal(two_regions, tmp_path):
    promotion = promote(grant(two_regions))
    settings = plan_of(two_regions).cluster.store.settings()
    forged = {**promotion, "checkpoint": {**promotion["checkpoint"], "manifest_sha256": "0" * 64}}
    with pytest.raises(
        CheckpointUnsound, match=r"promotion\.json was altered since it was sealed, or sealed by another"
    ):
        fetched(two_regions, forged, settings, tmp_path)
    del forged["seal"]
    with pytest.raises(CheckpointUnsound, match=r"promotion\.json has no seal, and store.key_file asks for one"):
        fetched(two_regions, forged, settings, tmp_path)


def test_another_checkpoint_put_in_the_promoted_one_s_place_is_refused(two_regions, tmp_path):
    promotion = promote(grant(two_regions))
    settings = plan_of(two_regions).cluster.store.settings()
    other = ours(two_regions)
    for place in (settings, dataclasses.replace(settings, place=settings.replica)):
        put(open_series(place, series_name(two_regions)), other, replace=True)
    with pytest.raises(CheckpointUnsound, match="has another checkpoint of step 30 than the one promoted"):
        fetched(two_regions, promotion, settings, tmp_path / "there")


def test_a_promotion_of_an_older_version_says_what_to_do(trained, tmp_path):
    old = {"checkpoint": {"path": "/store/x", "key": "x", "store": "/store", "step": 30, "manifest_sha256": "0"}}
    with pytest.raises(CheckpointUnsound, match=r"older version, which kept whole folders .* promote gpus_8 again"):
        fetched(trained, old, plan_of(trained).cluster.store.settings(), tmp_path)
