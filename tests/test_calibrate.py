"""Repeats measure noise: the statistics by simulation, the runs with a trainer that takes no time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from gate_folders import open_ladder, write_records
from running import ROOT, steps, until

from tasks import noise, statistics
from tasks.calibrate import LAUNCHES, SEEDS
from tasks.cli import main
from tasks.evidence import evidence
from tasks.gates.launches import launch_noise
from tasks.launchers.processes import marked
from tasks.run import plan_of
from tasks.stage_dir import RunDir, read_json, write_json


@pytest.fixture
def calibrate(configs, capsys):
    """Calibrate ``tiny`` in this process; return (exit code, stdout, stderr, the noise file's value)."""

    def call(*arguments):
        code = main(["calibrate", "tiny", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err, read_json(configs.root / "baselines" / "noise_tiny_here_8gpus.json")

    return call


def test_repeats_are_run_and_their_spread_is_written(calibrate):
    code, out, _, found = calibrate("--repeats", "3", "--vary-seed", "--id", "one")
    assert code == 0, out
    runs = [RunDir.of("tiny", f"calibrate_one_{number}") for number in (1, 2, 3)]
    ends = [[row for row in map(json.loads, run.stage("gpus_8").metrics.read_text().splitlines())
             if row.get("at") == "end"][-1]["loss"] for run in runs]  # fmt: skip
    assert found["loss_sd"] == pytest.approx(statistics.spread(ends).sd)
    speeds = [noise.repeat_of(run.stage("gpus_8")).speed for run in runs]
    assert found["launch_sd"] == noise.launch_spread(speeds).sd > 0
    assert found["step_sd"] == pytest.approx(0.01, rel=0.3)  # what the foreign trainer draws: 0.005 of 0.5 s
    assert (found["experiment"], found["cluster"], found["gpus"], found["repeats"]) == ("tiny", "here", 8, 3)
    assert found["natures"] == {"launch_sd": "modelled", "step_sd": "modelled", "loss_sd": "real"}
    assert found["varied"] == SEEDS and found["runs"] == [run.run_id for run in runs]
    assert "repeat 3 of 3: run tiny/calibrate_one_3" in out
    assert "throughput, launch to launch  sd " in out and "(95%: " in out and "modelled" in out
    assert "noise_tiny_here_8gpus.json; gates of tiny on here go by it from now on" in out
    seeds = [read_json(run.stage("gpus_8").config)["seed"] for run in runs]
    assert len(set(seeds)) == 3


def test_gates_find_what_was_measured_and_say_so(calibrate):
    calibrate("--repeats", "3", "--vary-seed", "--id", "one")
    seen = evidence(RunDir.of("tiny", "calibrate_one_1").stage("gpus_8"))
    assert (seen.noise.repeats, seen.noise.source) == (3, "noise_tiny_here_8gpus.json")
    assert launch_noise(seen.noise, None).says.startswith("measured, 3 repeats (noise_tiny_here_8gpus.json)")


def test_without_vary_seed_only_launches_differ(calibrate):
    code, out, _, found = calibrate("--repeats", "3", "--id", "one")
    assert code == 0 and found["varied"] == LAUNCHES
    configs = [read_json(RunDir.of("tiny", f"calibrate_one_{n}").stage("gpus_8").config) for n in (1, 2, 3)]
    assert {config["seed"] for config in configs} == {7}
    assert len({config["emulation"]["seed"] for config in configs}) == 3
    assert found["loss_sd"] == 0.0 and "the repeats agree to the last bit, so gates keep their prior" in out
    assert evidence(RunDir.of("tiny", "calibrate_one_1").stage("gpus_8")).noise.loss_sd is None


def test_another_stage_is_climbed_to(calibrate, configs):
    code, _, _, _ = calibrate("--repeats", "3", "--stage", "gpus_64", "--id", "one")
    assert code == 0
    assert read_json(configs.root / "baselines" / "noise_tiny_here_64gpus.json")["gpus"] == 64
    run = RunDir.of("tiny", "calibrate_one_2")
    assert run.stage("gpus_8").promotion.exists() and not run.stage("gpus_64").promotion.exists()
    assert run.stage("gpus_64").verdict.exists()


def test_a_calibration_goes_on_by_its_id_and_changes_nothing_that_is_done(calibrate):
    calibrate("--repeats", "3", "--id", "one")
    first = RunDir.of("tiny", "calibrate_one_1").stage("gpus_8")
    before = first.metrics.read_bytes()
    code, _, _, found = calibrate("--repeats", "4", "--id", "one")
    assert code == 0 and found["repeats"] == 4
    assert first.metrics.read_bytes() == before


def test_ctrl_c_ends_the_job_writes_nothing_and_says_how_to_go_on(configs, gate_file):
    configs.experiment(settings=gate_file[1])
    command = [sys.executable, "-m", "tasks.cli", "calibrate", "tiny", "--repeats", "3", "--id", "one"]
    stage = RunDir.of("tiny", "calibrate_one_1").stage("gpus_8")
    with subprocess.Popen(
        command, cwd=ROOT, env=dict(os.environ), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        until(lambda: 19 in steps(stage))
        name = read_json(stage.job)["name"]
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert marked(name) == []
    assert "interrupted after 0 of 3 repeats; nothing is written" in out
    assert "go on with: scaleup calibrate tiny --repeats 3 --id one" in out
    assert not list(configs.root.glob("baselines/*"))


def test_a_repeat_whose_gates_say_no_counts_and_one_that_dies_ends_it(calibrate, configs):
    stages = configs.stages()
    stages[0]["gates"] = {"steady_throughput": {"half_width": 1e-6}}
    configs.experiment(stages=stages)
    code, out, _, found = calibrate("--repeats", "3", "--vary-seed", "--id", "one")
    assert code == 0 and found["repeats"] == 3
    assert "it counts as a repeat all the same" in out
    configs.experiment(settings={"fail_at": 13})
    code, out, _, _ = calibrate("--repeats", "3", "--id", "two")
    assert code == 1
    assert "repeat 1 ended: gpus_8 ended before its time" in out and "--id two" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--repeats", "2"], "--repeats must be 3 or more, not 2"),
        (["--repeats", "3", "--stage", "gpus_9"], "--stage: unknown stage 'gpus_9'"),
    ],
)
def test_a_wrong_order_is_refused_in_a_sentence_before_anything_runs(calibrate, arguments, said, scaleup_home):
    code, _, err, _ = calibrate(*arguments)
    assert code == 1 and err.startswith("scaleup calibrate: ") and said in err
    assert not (scaleup_home / "runs").exists()


def test_a_reference_wants_the_fingerprint_of_the_data(calibrate):
    code, _, err, found = calibrate("--repeats", "3", "--reference", "--id", "one")
    assert code == 1 and "names no fingerprint" in err and found is None


def test_reference_runs_hold_the_whole_chain_on_one_axis(configs):
    run = open_ladder(configs)
    for name, speed in (("gpus_8", 100.0), ("gpus_64", 97.0)):
        write_records(run.stage(name), speed)
    seen_seed = plan_of(run.stage("gpus_64")).seed
    stored = noise.reference([noise.repeat_of(run.stage("gpus_64"))])
    path = noise.write_reference(stored)
    assert path.name == f"ladder_{'f' * 12}.json" and read_json(path) == stored
    [one] = stored["runs"]
    assert len(one["step_tokens"]) == len(one["step_loss"]) == 180  # the replay is counted once
    assert one["step_tokens"] == sorted(set(one["step_tokens"]))
    assert one["tokens"] == sorted(set(one["tokens"])) and one["tokens"][0] > 0
    assert one["seed"] == seen_seed
    seen = evidence(run.stage("gpus_64"))
    assert seen.baseline == stored and seen.baseline["batch_tokens"] == seen.stage.batch_tokens


def test_repeats_on_different_data_are_no_repeats(configs):
    run = open_ladder(configs)
    write_records(run.stage("gpus_8"), 100.0)
    one = noise.repeat_of(run.stage("gpus_8"))
    other = SimpleNamespace(**{**one.__dict__, "seen": SimpleNamespace(stage=SimpleNamespace(fingerprint="e" * 64))})
    with pytest.raises(Exception, match="the repeats trained on different data"):
        noise.measured([one, other], "")


def test_a_file_is_whole_or_not_there(configs, monkeypatch):
    folder = configs.root / "baselines"
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        noise.write_noise({"experiment": "x", "cluster": "c", "gpus": 8})
    assert list(folder.iterdir()) == []
    monkeypatch.undo()
    write_json(folder / "kept.json", {})


@pytest.mark.parametrize("launch_sd", [0.0, 0.005, 0.02])
def test_the_launch_sd_is_found_apart_from_the_noise_of_the_steps(launch_sd):
    rng, found = np.random.default_rng(2), []
    for _ in range(150):
        launches = np.exp(launch_sd * rng.normal(size=8))
        speeds = [statistics.batch_means(at * (1 + 0.02 * rng.normal(size=100))) for at in launches]
        found.append(noise.launch_spread(speeds))
    middle = float(np.sqrt(np.mean([spread.sd**2 for spread in found])))
    if launch_sd:
        assert middle == pytest.approx(launch_sd, rel=0.12)
        assert np.mean([spread.low <= launch_sd <= spread.high for spread in found]) >= 0.9
    else:
        assert middle < 0.003  # no further apart than the steps explain: 0.02 / sqrt(100)
