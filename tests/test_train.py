"""The trainer from outside: killed at any moment it goes on exactly; asked to stop it does; what cannot be it says."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from trained import order, records, run, span, steps, tensors

from training import evaluate, loop, manifest, train
from training.checkpoint import Progress
from training.config import Checkpointing, ConfigError, HeldOut, ModelShape, Span, Start, read_config

SPANS = (span(1, 14, 20), span(15, 16, 29))
EVERY_SEVEN = Checkpointing(every_steps=7, keep=2)
DEATHS = ("step:3", "step:18", "torn:19", "unsummed:21", "unrecorded:21", "worker:24", "SIGTERM:10", "SIGUSR1:10")


def job(folder: Path) -> Path:
    return order(folder, *SPANS, checkpointing=EVERY_SEVEN, hand_over_step=26)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """One job left alone, and one for each death, started again after it; what became of each start."""
    root = tmp_path_factory.mktemp("deaths")
    scenarios = [(job(root / "alone"), "")]
    for death in DEATHS:
        folder = job(root / death.replace(":", "_"))
        scenarios += [(folder, death), (folder, "")]
    ends = run(*scenarios, timeout=280)
    found = {"alone": {"folder": root / "alone", "ends": ends[:1]}}
    for number, death in enumerate(DEATHS):
        pair = ends[1 + 2 * number : 3 + 2 * number]
        found[death] = {"folder": root / death.replace(":", "_"), "ends": pair}
    return found


def test_a_job_left_alone_records_every_step_evaluation_and_checkpoint_once(runs):
    folder = runs["alone"]["folder"]
    assert runs["alone"]["ends"][0]["code"] == 0, runs["alone"]["ends"][0]["said"]
    assert [record["step"] for record in records(folder, "step")] == list(range(1, 31))
    assert [record["tokens"] for record in records(folder, "step")][-1] == (14 * 20 + 16 * 29) * 16
    assert [(r["at"], r["step"]) for r in records(folder, "held_out")] == [("start", 0), ("step", 26), ("end", 30)]
    written = [(r["step"], r["purpose"], r["path"]) for r in records(folder, "checkpoint")]
    assert [(step, purpose) for step, purpose, _ in written] == [
        (7, "periodic"), (14, "periodic"), (21, "periodic"), (26, "hand_over"), (28, "periodic"), (30, "final")
    ]  # fmt: skip
    kept = [m.step for m in manifest.whole(folder / "checkpoints")]
    assert kept == [21, 26, 28, 30], "two periodic ones, the hand-over and the final one"
    assert all(manifest.verify(folder / path) == [] for step, _, path in written if step in kept)
    first, last = records(folder, "held_out")[0]["loss"], records(folder, "held_out")[-1]["loss"]
    assert last < first - 0.3


@pytest.mark.parametrize("death", DEATHS)
def test_after_any_death_the_rest_is_the_same_bit_for_bit(runs, death):
    folder, alone = runs[death]["folder"], runs["alone"]["folder"]
    assert runs[death]["ends"][1]["code"] == 0, runs[death]["ends"][1]["said"]
    found, wanted = steps(folder), steps(alone)
    assert list(found) == list(wanted)
    for step, record in wanted.items():
        for field in ("loss", "grad_norm", "learning_rate", "tokens", "batch", "step_seconds"):
            assert found[step][field] == record[field], f"step {step} {field}"
    ends = tensors(folder / "checkpoints/step_00000030"), tensors(alone / "checkpoints/step_00000030")
    assert int(ends[0]["cursor"]) == 14 * 20 + 16 * 29
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])
    assert manifest.verify(folder / "checkpoints/step_00000030") == []
    assert not list(folder.glob("checkpoints/.*")), "nothing half-written is left"


@pytest.mark.parametrize("death", DEATHS)
def test_it_ends_as_it_was_ended_at_once_and_leaves_no_process(runs, death):
    end = runs[death]["ends"][0]
    wanted = {"SIGTERM": -signal.SIGTERM, "SIGUSR1": 0}.get(death.split(":")[0], -signal.SIGKILL)
    assert end["code"] == wanted
    assert end["orphan_seconds"] < 5
    assert runs[death]["ends"][1]["orphan_seconds"] < 5


@pytest.mark.parametrize(
    ("death", "resumed"),
    [("step:3", None), ("step:18", 14), ("torn:19", 14), ("unsummed:21", 14), ("unrecorded:21", 21), ("worker:24", 21)],
)
def test_it_goes_on_from_the_newest_whole_checkpoint(runs, death, resumed):
    _, second = records(runs[death]["folder"], "header")
    found = second["resumed_from"]
    assert (found and found["step"]) == resumed
    starts = [r for r in records(runs[death]["folder"], "held_out") if r["at"] == "start"]
    assert len(starts) == (2 if resumed is None else 1), "only a job that begins evaluates its start"


def test_asked_to_save_it_writes_a_checkpoint_and_says_so(runs):
    folder = runs["SIGUSR1:10"]["folder"]
    (saved,) = [record for record in records(folder, "checkpoint") if record.get("saved")]
    assert 10 <= saved["step"] < 20, (
        "soon after the signal: how many steps pass until it arrives is the scheduler's matter"
    )
    assert records(folder, "header")[1]["resumed_from"]["step"] == saved["step"]
    assert [record["step"] for record in records(folder, "step")] == list(range(1, 31)), "no step was done twice"


def test_a_damaged_checkpoint_is_passed_over_and_named(runs, tmp_path):
    alone = runs["alone"]["folder"]
    folder = tmp_path / "stage"
    shutil.copytree(alone, folder)
    for step in (30, 28):
        (shard, *_) = (folder / "checkpoints" / manifest.folder_name(step)).glob("*.distcp")
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    done = train.prepare(folder).resume
    assert done.checkpoint is not None
    assert done.checkpoint.step == 26
    assert [manifest.folder_name(step) in said for step, said in zip((30, 28), done.unsound, strict=True)] == [True] * 2
    assert "SHA-256" in done.unsound[0]


def test_the_next_stage_replays_the_same_samples_on_more_ranks(runs, tmp_path):
    alone = runs["alone"]["folder"]
    hand_over = alone / "checkpoints" / manifest.folder_name(26)
    own = read_config(alone).spans[1]
    replay = Span("replay", 27, 4, 29, own.learning_rate, own.schedule)
    settings = {
        "data": str(alone.parent / "corpus"),
        "start": Start("continue", str(hand_over), 26),
    }
    folder = order(tmp_path / "gpus_64", replay, span(31, 3, 70, "canary"), gpus=64, **settings)
    (end,) = run(folder)
    assert end["code"] == 0, end["said"]
    before, after = steps(alone), steps(folder)
    assert [(step, after[step]["phase"]) for step in after] == [(n, "replay") for n in range(27, 31)] + [
        (n, "canary") for n in (31, 32, 33)
    ]
    for step in range(27, 31):
        assert after[step]["loss"] == pytest.approx(before[step]["loss"], abs=1e-6)
        assert after[step]["tokens"] == before[step]["tokens"]
    start, end_of = records(folder, "held_out")[0], records(alone, "held_out")[1]
    assert (start["at"], start["step"], end_of["step"]) == ("start", 26, 26)
    assert start["loss"] == pytest.approx(end_of["loss"], abs=1e-6)
    assert after[33]["tokens"] == before[30]["tokens"] + 3 * 70 * 16


def test_evaluating_a_checkpoint_gives_the_loss_that_training_recorded(runs, capsys):
    folder = runs["alone"]["folder"]
    checkpoint = folder / "checkpoints" / manifest.folder_name(30)
    assert evaluate.main([str(checkpoint), "--config", str(folder / "config.json")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["loss"] == pytest.approx(records(folder, "held_out")[-1]["loss"], abs=1e-6)
    assert found["step"] == 30
    assert found["fingerprint"] == records(folder, "header")[0]["fingerprint"]


def test_weights_alone_begin_the_stream_and_the_steps_anew(runs, tmp_path):
    alone = runs["alone"]["folder"]
    start = Start("weights", str(alone / "checkpoints" / manifest.folder_name(30)), 0)
    folder = order(
        tmp_path / "gpus_8", span(1, 2, 20), start=start, data=str(alone.parent / "corpus"), seed=99, processes=1
    )
    (end,) = run(folder)
    assert end["code"] == 0, end["said"]
    first = records(folder, "held_out")[0]
    assert first["loss"] == pytest.approx(records(alone, "held_out")[-1]["loss"], abs=1e-6)
    assert [(record["step"], record["tokens"]) for record in records(folder, "step")] == [(1, 320), (2, 640)]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"precision": "fp8"}, "precision: 'fp8' is none of float32, bf16, fp16"),
        ({"emulation": None}, "processes: 2 processes cannot be timed as 8 GPUs"),
        ({"processes": 9}, "processes: 9 is not between 1 and the stage's 8 GPUs"),
        ({"start": Start("continue", None, 3)}, "start: kind 'continue' needs a checkpoint"),
        ({"start": Start("continue", "nowhere", 3)}, "start.checkpoint is not sound: nowhere has no manifest.json"),
        ({"data": "nowhere"}, "data: 'nowhere' is neither"),
        ({"model": ModelShape(1, 8, 1, 8, 100)}, "model.vocabulary: 100"),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_refused_in_one_sentence(tmp_path, capsys, changes, sentence):
    folder = order(tmp_path / "stage", *SPANS, **changes)
    assert train.main([str(folder)]) == train.REFUSED
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not (folder / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"start_step": 25}, "is of step 26, the stage starts after step 25"),
        ({"seed": 12}, "was written with seed 11, this stage has 12"),
        ({"sequence_length": 8}, "was written with sequence_length 16, this stage has 8"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(runs, tmp_path, changes, sentence):
    alone = runs["alone"]["folder"]
    hand_over = alone / "checkpoints" / manifest.folder_name(26)
    start = Start("continue", str(hand_over), changes.pop("start_step", 26))
    folder = order(tmp_path / "stage", span(27, 3, 8), start=start, data=str(alone.parent / "corpus"), **changes)
    with pytest.raises(ConfigError, match=sentence):
        train.prepare(folder)


def test_steps_must_follow_one_another(tmp_path):
    config = read_config(order(tmp_path / "stage", span(1, 3, 8), span(5, 2, 8)))
    with pytest.raises(
        ConfigError, match=r"step 0 is done, and what follows it is not every step once: \[1, 2, 3, 5, 6\]"
    ):
        list(loop.steps(config, Progress()))
    assert [step for _, step in loop.steps(read_config(order(tmp_path / "b", span(1, 3, 8))), Progress(2, 16))] == [3]


def test_the_launcher_numbers_attempts(tmp_path, monkeypatch):
    folder = order(tmp_path / "stage", *SPANS)
    assert train.prepare(folder).config.attempt == 1
    monkeypatch.setenv("SCALEUP_ATTEMPT", "4")
    assert train.prepare(folder).config.attempt == 4


def test_held_out_loss_is_evaluated_whenever_so_many_tokens_have_gone_by(tmp_path):
    folder = order(tmp_path / "stage", *SPANS, held_out=HeldOut(16, 1000))
    config = read_config(folder)
    crossed = [c for c in range(0, 400, 20) if loop.crosses(config, Progress(0, c), Progress(1, c + 20))]
    assert crossed == [60, 120, 180, 240, 300, 360]  # 62.5 samples are 1000 tokens
