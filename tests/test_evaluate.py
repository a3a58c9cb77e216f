"""From folders to a verdict: what gates see, when early gates are asked, and what a verdict says."""

from __future__ import annotations

import json

import pytest
from gate_folders import THREE_STAGES, open_ladder, write_records

from tasks.errors import GateFailed
from tasks.evaluate import Verdict, early, evaluate
from tasks.evidence import evidence
from tasks.forecast import forecast
from tasks.gates import Outcome
from tasks.stage_dir import StageDir, read_json, write_json


@pytest.fixture
def second(configs) -> StageDir:
    """A second stage with its forecast, after a healthy first one."""
    run = open_ladder(configs)
    forecast(run.stage("gpus_8"))
    write_records(run.stage("gpus_8"), 100.0)
    forecast(run.stage("gpus_64"))
    return run.stage("gpus_64")


def test_evidence_joins_the_folders_of_the_run(second):
    write_records(second, 97.0)
    seen = evidence(second)
    assert seen.stage.name == "gpus_64"
    assert seen.stage.fingerprint == "f" * 64
    assert (seen.stage.first_step, seen.stage.last_step) == (91, 180)
    assert list(seen.earlier) == ["gpus_8"]
    assert seen.previous == "gpus_8"
    assert seen.forecast == read_json(second.forecast)
    assert seen.earlier["gpus_8"].forecast["throughput"]["median"] is None
    assert seen.baseline is None


def test_a_trainer_need_not_repeat_the_phase_of_a_step(second):
    write_records(second, 97.0)
    assert evidence(second).steps["phase"].value_counts().to_dict() == {"train": 70, "replay": 20, "canary": 20}


def test_a_baseline_is_found_by_the_datas_fingerprint(second, configs):
    write_records(second, 97.0)
    file = configs.root / "baselines" / f"ladder_{'f' * 12}.json"
    write_json(file, {"fingerprint": "f" * 64, "batch_tokens": 4096, "runs": []})
    assert evidence(second).baseline["batch_tokens"] == 4096


def test_early_gates_wait_for_the_last_canary_step(second):
    write_records(second, 97.0, until=109)
    assert early(second) == []
    assert not second.early.exists()
    write_records(second, 97.0, until=110)
    checks = early(second)
    assert {c.gate: str(c.outcome) for c in checks} == dict.fromkeys(
        ("resume_parity", "replay_parity", "canary", "finite_loss"), "PASS"
    )
    assert [c["gate"] for c in read_json(second.early)["checks"]] == [c.gate for c in checks]


def test_a_first_stage_has_no_early_gates(configs):
    run = open_ladder(configs)
    write_records(run.stage("gpus_8"), 100.0)
    assert early(run.stage("gpus_8")) == []


def test_a_slow_canary_fails_early(second):
    write_records(second, 80.0, until=110)
    [canary] = [c for c in early(second) if c.gate == "canary"]
    assert canary.outcome is Outcome.FAIL
    assert "80 tokens/s/GPU over 20 steps is 8" in canary.reason


def test_a_healthy_stage_passes_and_its_verdict_survives_the_file(second):
    write_records(second, 97.0)
    early(second)
    verdict = evaluate(second)
    assert verdict.outcome is Outcome.PASS
    assert len({c.gate for c in verdict.checks}) == 7
    kept = read_json(second.verdict)
    assert kept["policy"]["scaling_efficiency"] == {"reference": "gpus_8"}
    assert kept["emulated"] is True
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict
    assert Verdict.from_json(kept) == verdict


def test_the_verdict_is_the_same_where_nobody_looked_early(second):
    write_records(second, 97.0)
    assert evaluate(second).outcome is Outcome.PASS
    assert "canary" in {c["gate"] for c in read_json(second.verdict)["checks"]}


@pytest.mark.parametrize(
    ("fault", "gate"),
    [
        ({"extra": 0.3}, "loss_near_baseline"),
        ({"stuck": True}, "loss_near_baseline"),
        ({"speed": 80.0}, "scaling_efficiency"),
        ({"until": 170}, "finite_loss"),
    ],
)
def test_a_planted_fault_is_found_and_named(second, fault, gate):
    write_records(second, **{"speed": 97.0, **fault})
    with pytest.raises(GateFailed) as failed:
        evaluate(second)
    text = str(failed.value)
    assert text.startswith("gpus_64 is not promoted: ")
    assert f"\n  {gate} says " in text
    assert 'scaleup promote ladder/run_1 gpus_64 --because "..."' in text
    kept = {c["gate"]: c["outcome"] for c in read_json(second.verdict)["checks"]}
    assert kept[gate] in ("FAIL", "INVALID")


def test_a_gate_asked_twice_is_answered_twice(configs):
    stages = [dict(stage) for stage in THREE_STAGES["stages"]]
    stages[1]["gates"] = {"scaling_efficiency": [{"reference": "gpus_8"}, {"reference": "gpus_8", "at_least": 0.99}]}
    run = open_ladder(configs, stages=[{"hours": 1, "steps": 90, "learning_rate": 0.002, **s} for s in stages])
    for name, speed in (("gpus_8", 100.0), ("gpus_64", 95.0)):
        forecast(run.stage(name))
        write_records(run.stage(name), speed)
    with pytest.raises(GateFailed, match=r"scaling_efficiency\.\S+ says FAIL"):
        evaluate(run.stage("gpus_64"))
    kept = read_json(run.stage("gpus_64").verdict)
    assert {c["gate"]: c["outcome"] for c in kept["checks"]} == dict(zip(kept["policy"], ("PASS", "FAIL"), strict=True))


def test_what_a_leave_set_aside_is_listed_and_does_not_count(second):
    write_records(second, 97.0)
    refused = read_json(second.forecast)
    refused["checks"][0]["outcome"] = refused["outcome"] = "FAIL"
    write_json(second.forecast, refused)
    with pytest.raises(GateFailed, match="forecast_efficiency says FAIL"):
        evaluate(second)
    write_json(second.leave, {"by": "person", "person": "someone", "because": "I know better"})
    verdict = evaluate(second)
    assert verdict.outcome is Outcome.PASS
    assert verdict.set_aside == ("forecast_efficiency",)


def test_a_stage_without_gates_shows_nothing_and_is_not_promoted(configs):
    gates = {"finite_loss": "dropped"}
    run = open_ladder(configs, stages=[{"gpus": 8, "hours": 1, "steps": 90, "batch_sequences": 64,
                                        "learning_rate": 0.002, "gates": gates}])  # fmt: skip
    forecast(run.stage("gpus_8"))
    write_records(run.stage("gpus_8"), 100.0)
    with pytest.raises(GateFailed, match="no gate was asked, so nothing has been shown"):
        evaluate(run.stage("gpus_8"))
