"""Runs that are over, judged anew under another policy: each gate at its moment, nothing written."""

from __future__ import annotations

import json
from itertools import zip_longest
from pathlib import Path

import pytest
from gate_folders import THREE_STAGES, open_ladder, write_records

from tasks.cli import main
from tasks.errors import GateFailed, StageRefused
from tasks.evaluate import early, evaluate
from tasks.forecast import forecast
from tasks.gates import Check, judge_all
from tasks.plan import Ladder
from tasks.policy import read_policy
from tasks.rejudge import as_it_was, rejudge
from tasks.run import ladder_of, plan_of
from tasks.stage_dir import RunDir, read_json, write_json
from tasks.terminal.rejudge_view import sentence


def climbed(configs, speeds=(100.0, 97.0, 96.0), **changes) -> RunDir:
    """A run whose stages ran at these speeds, with gates asked at all their moments; promoted where they passed."""
    run = open_ladder(configs, **changes)
    for plan, speed in zip_longest(ladder_of(run).stages, speeds):
        stage = run.stage(plan.name)
        try:
            forecast(stage)
        except StageRefused:
            return run
        if speed is None:
            return run
        write_json(stage.config, {"gpus": plan.gpus})
        canary = [span.last_step for span in plan.spans if span.phase == "canary"]
        if canary:
            write_records(stage, speed, until=canary[-1] + 2)  # a look is never quite on time
            early(stage)
        write_records(stage, speed)
        try:
            evaluate(stage)
        except GateFailed:
            return run
        write_json(stage.promotion, {"by": "gates", "because": "all passed", "checkpoint": {"step": 1, "tokens": 1}})
    return run


def policy(tmp_path: Path, text: str, ladder: Ladder) -> dict:
    path = tmp_path / "gates.yaml"
    path.write_text(text)
    return read_policy(str(path), [ladder]).gates(ladder)


def ends(run: RunDir, gates: dict) -> dict[str, tuple[str, str]]:
    return {stage.name: (stage.recorded, stage.anew) for stage in rejudge(run, gates)}


def test_the_same_policy_gives_the_same_numbers_at_every_moment(configs):
    run = climbed(configs)
    ladder = ladder_of(run)
    assert ends(run, {plan.name: plan.gates for plan in ladder.stages}) == {
        plan.name: ("PASS", "PASS") for plan in ladder.stages
    }
    for plan in ladder.stages:
        stage = run.stage(plan.name)
        for moment, path in (("entry", stage.forecast), ("early", stage.early), ("end", stage.verdict)):
            if not path.exists():
                continue
            kept = {check["gate"]: check for check in read_json(path)["checks"]}
            again = judge_all(as_it_was(stage, plan, moment), plan.gates)
            assert again or moment == "entry"
            for check in again:
                assert check == Check.from_json(kept[check.gate]), moment


def test_entry_and_early_gates_see_nothing_that_came_later(configs):
    run = climbed(configs)
    stage = run.stage("gpus_64")
    plan = plan_of(stage)
    entry, at_canary, end = (as_it_was(stage, plan, moment) for moment in ("entry", "early", "end"))
    assert entry.steps.empty and entry.held_out.empty and entry.forecast is None and entry.stage.fingerprint == ""
    assert list(entry.earlier) == ["gpus_8"]
    assert int(at_canary.steps["step"].max()) == 112  # two more than the canary: what the kept answer had used
    assert int(at_canary.held_out["step"].max()) <= 112
    assert int(end.steps["step"].max()) == 180


def test_a_stricter_bar_changes_a_verdict_and_what_it_opens(configs, tmp_path):
    run = climbed(configs, speeds=(100.0, 96.5, 95.5))
    gates = policy(tmp_path, "stages: {gpus_64: {scaling_efficiency: {at_least: 0.99}}}", ladder_of(run))
    assert gates["gpus_64"]["scaling_efficiency"] == {"reference": "gpus_8", "at_least": 0.99}
    assert ends(run, gates) == {
        "gpus_8": ("PASS", "PASS"),
        "gpus_64": ("PASS", "FAIL"),
        "gpus_1000": ("PASS", "NOT REACHED"),
    }
    [changed] = [gate for stage in rejudge(run, gates) for gate in stage.gates if gate.changed]
    assert (changed.gate, changed.moment, changed.recorded, changed.anew) == (
        "scaling_efficiency", "end", "PASS", "FAIL",
    )  # fmt: skip
    assert "99% is asked" in changed.reason and changed.by_policy


def test_a_shadow_is_shown_and_counts_for_nothing(configs, tmp_path):
    run = climbed(configs, speeds=(100.0, 94.0))
    text = "stages: {gpus_64: {scaling_efficiency: {at_least: 0.99, shadow: true}}}"
    [_, stage, *_] = rejudge(run, policy(tmp_path, text, ladder_of(run)))
    assert (stage.recorded, stage.anew) == ("PASS", "PASS")
    assert [gate.anew for gate in stage.gates if gate.gate == "scaling_efficiency"] == ["FAIL (shadow)"]


def test_a_refused_stage_that_would_have_started_is_unknown(configs, tmp_path):
    stages = [{"hours": 1, "steps": 90, "learning_rate": 0.002, **stage} for stage in THREE_STAGES["stages"]]
    stages[1]["gates"] = {"finite_loss": {}}  # lets pass what slows a GPU by a fifth
    run = climbed(configs, speeds=(100.0, 80.0), stages=stages)
    assert not run.stage("gpus_1000").config.exists()
    text = "stages: {gpus_1000: {forecast_efficiency: {at_least: 0.5, present_at_least: 0.5}}}"
    [*_, last] = rejudge(run, policy(tmp_path, text, ladder_of(run)))
    assert (last.recorded, last.anew, last.promotion_changed) == ("REFUSED", "UNKNOWN", None)


def test_a_gate_can_be_dropped_added_and_reset(configs, tmp_path):
    run = climbed(configs, speeds=(100.0, 94.0))
    text = "stages: {gpus_64: {canary: dropped, stall_free: {}, forecast_efficiency: {reference: gpus_8}}}"
    gates = policy(tmp_path, text, ladder_of(run))["gpus_64"]
    assert "canary" not in gates and gates["stall_free"] == {}
    assert gates["forecast_efficiency"] == {"reference": "gpus_8", "at_least": 0.8}
    judged = rejudge(run, policy(tmp_path, text, ladder_of(run)))[1]
    answers = {gate.gate: (gate.recorded, gate.anew) for gate in judged.gates}
    assert answers["canary"] == ("PASS", "not asked")
    assert answers["stall_free"][0] == "not asked"


def test_what_another_baseline_changes_is_not_laid_at_the_policys_door(configs, tmp_path):
    run = climbed(configs, speeds=(100.0, 97.0))
    write_json(
        configs.root / "baselines" / f"ladder_{'f' * 12}.json",
        {"fingerprint": "f" * 64, "batch_tokens": 1024, "runs": [
            {"tokens": [100, 1_000_000], "held_out_loss": [0.2 + at, 0.1 + at]} for at in (0.0, 0.001)]},
    )  # fmt: skip
    gates = policy(tmp_path, "stages: {gpus_64: {canary: {at_least: 0.94}}}", ladder_of(run))
    [changed] = [gate for gate in rejudge(run, gates)[1].gates if gate.changed]
    assert (changed.gate, changed.recorded, changed.anew) == ("loss_near_baseline", "PASS", "FAIL")
    assert not changed.by_policy
    stage = rejudge(run, gates)[1]
    assert (stage.recorded, stage.today, stage.anew) == ("PASS", "FAIL", "FAIL")
    assert stage.drifted and stage.promotion_changed is False
    assert sentence([(run, [stage])]).startswith("0 of 1 promotions would have changed; 1 change today whatever")


def test_an_experiments_file_stands_in_place_of_the_runs_gates(configs, tmp_path):
    run = climbed(configs, speeds=(100.0, 97.0))
    experiment = configs.root / "experiments" / "ladder.yaml"
    experiment.write_text(experiment.read_text().replace("finite_loss: {}", "stall_free: {}"))
    read = read_policy(str(experiment), [ladder_of(run)]).gates(ladder_of(run))
    assert "finite_loss" not in read["gpus_64"] and "stall_free" in read["gpus_64"]


def test_nothing_is_written_and_the_last_line_counts(configs, tmp_path, capsys):
    run = climbed(configs, speeds=(100.0, 96.5, 95.5))
    path = tmp_path / "gates.yaml"
    path.write_text("stages: {gpus_64: {scaling_efficiency: {at_least: 0.99}}}")
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.path.rglob("*") if p.is_file()}
    assert main(["rejudge", "ladder/run_1", "latest", "--gates", str(path)]) == 0
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.path.rglob("*") if p.is_file()} == before
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "2 of 3 promotions would have changed"  # named twice, judged once
    assert "gpus_64: PASS -> FAIL" in out
    assert main(["rejudge", "latest", "--gates", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["promotions"], said["promotions_changed"], said["promotions_unknown"]) == (3, 2, 0)
    gates = {gate["gate"]: gate for gate in said["runs"][0]["stages"][1]["gates"]}
    assert gates["scaling_efficiency"]["anew"] == "FAIL" and not gates["resume_parity"]["changed"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stages: {gpus_64: {cannary: }}", "stages.gpus_64: unknown gate 'cannary'; did you mean canary?"),
        ("stages: {gpus_64: {canary: {atleast: 1}}}", "stages.gpus_64.canary: unknown threshold 'atleast'"),
        ("stages: {gpus_64: {canary: {at_least: high}}}", "stages.gpus_64.canary.at_least: must be a number"),
        ("stages: {gpus_65: {canary: }}", "stages: unknown stage 'gpus_65'; did you mean gpus_64?"),
        ("stages: {gpus_64: {canary: 5}}", "stages.gpus_64.canary: must be thresholds"),
        ("stages: {gpus_64: 5}", "stages.gpus_64: must map gates to thresholds"),
        ("stages: {}", "stages: must map stages to their gates"),
        ("gates: {canary: }", "unknown key 'gates'"),
        ("stages: [", "line 1"),
        ("stages: {gpus_8: {replay_parity: }}", "gpus_8 continues no stage"),
    ],
)
def test_what_is_wrong_with_a_policy_is_said_with_what_would_be_right(configs, tmp_path, capsys, text, said):
    climbed(configs, speeds=(100.0, 80.0))
    path = tmp_path / "gates.yaml"
    path.write_text(text)
    assert main(["rejudge", "latest", "--gates", str(path)]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


def test_runs_that_are_not_over_or_not_there_are_refused_in_a_sentence(configs, tmp_path, capsys):
    run = open_ladder(configs)
    path = tmp_path / "gates.yaml"
    path.write_text("stages: {gpus_64: {canary: }}")
    forecast(run.stage("gpus_8"))
    assert main(["rejudge", "latest", "--gates", str(path)]) == 1
    assert capsys.readouterr().err == (
        "scaleup rejudge: ladder/run_1 is not over: gpus_8 is forecast; only runs that are over are judged\n"
    )
    assert main(["rejudge", "nothing", "--gates", str(path)]) == 1
    assert "'nothing' is no run" in capsys.readouterr().err
    assert main(["rejudge", "latest", "--gates", str(tmp_path / "none.yaml")]) in (1, 2)
