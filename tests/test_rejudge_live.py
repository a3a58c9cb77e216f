"""Live rules judged anew on records alone: what would have alarmed, what would not, and what nobody can know."""

import contextlib
import json
import math
import re

import pytest
from gate_folders import THREE_STAGES, open_ladder, write_records

from tasks.cancel import record_cause
from tasks.cli import main
from tasks.errors import GateFailed
from tasks.evaluate import evaluate
from tasks.forecast import forecast
from tasks.live import LiveState, terms_of
from tasks.policy import read_policy
from tasks.rejudge import rejudge
from tasks.run import ladder_of, plan_of
from tasks.stage_dir import read_json, write_json


def slow(record):
    """Eight per cent slower from step 601 on."""
    return record | {"step_seconds": record["step_seconds"] * (1.08 if record["step"] > 600 else 1.0)}


def high(record):
    """A level loss, a tenth of a nat higher from step 601 on."""
    step = record["step"]
    return record | {"loss": 3.0 + 0.02 * math.sin(1.7 * step) + (0.1 if step > 600 else 0.0)}


def gone(record):
    """A loss that is none, at one step."""
    return record | ({"loss": None} if record["step"] == 700 else {})


@pytest.fixture
def ran(configs):
    """Make a run of one stage of 900 steps with a planted fault, and what looks said of it, each at 50 records.

    One that is stopped ends with the look that says so, as it would really.
    """

    def make(fault, **changes):
        stage_of = {**THREE_STAGES["stages"][0], "gates": {"finite_loss": {}}, "steps": 900, "learning_rate": 0.002}
        run = open_ladder(configs, stages=[stage_of | {"hours": 9}], **changes)
        stage = run.stage("gpus_8")
        forecast(stage)
        write_json(stage.config, {"gpus": 8})
        write_records(stage, 100.0)
        records = [json.loads(line) for line in stage.metrics.read_text().splitlines()]
        records = [one if "kind" in one else fault(one) | {"time": 1000.0 + one["step"]} for one in records]
        state, taken = LiveState(begun=1.0), 0
        while taken < len(records) and "stop" not in {alarm.action for alarm in state.alarms}:
            state.feed(records[taken : taken + 50], terms_of(stage, plan_of(stage)), 0.0)
            taken += 50
        write_json(stage.live, state.to_json())
        stage.metrics.write_text("".join(json.dumps(record) + "\n" for record in records[:taken]))
        if taken < len(records):
            record_cause(stage, "live", "a live rule")
        else:
            with contextlib.suppress(GateFailed):
                evaluate(stage)
        return run

    return make


def judged(run, tmp_path, text):
    """Return the stage judged anew, and its live rules' answers: then, today, anew."""
    path, ladder = tmp_path / "gates.yaml", ladder_of(run)
    path.write_text(text)
    policy = read_policy(str(path), [ladder])
    [stage] = rejudge(run, policy.gates(ladder), policy.rules(ladder))
    return stage, {row.gate: (row.recorded, row.today, row.anew) for row in stage.gates if row.moment == "live"}


def test_the_runs_own_rules_say_anew_what_they_said_then(ran, tmp_path):
    run = ran(slow)
    stage, rules = judged(run, tmp_path, "live: {hang: {steps: 30}}")
    [alarm] = read_json(run.stage("gpus_8").live)["alarms"]
    assert (alarm["rule"], alarm["action"]) == ("throughput", "page")
    assert 600 < alarm["step"] <= 680
    assert rules == {"throughput": (f"page at step {alarm['step']}",) * 3}
    assert (stage.recorded, stage.today, stage.anew) == ("PASS",) * 3
    [note] = stage.notes
    assert "hang is not judged anew" in note and "(then: no alarm; the longest gap between two records is 1 s" in note


def test_a_rule_that_would_have_stopped_says_at_which_step_and_the_stage_is_stopped(ran, tmp_path):
    stage, rules = judged(ran(slow), tmp_path, "stages: {gpus_8: {live: {throughput: {action: stop}}}}")
    then, today, anew = rules["throughput"]
    assert (then, anew) == (today, then.replace("page", "stop"))
    assert (stage.recorded, stage.anew, stage.promotion_changed) == ("PASS", "STOPPED", True)


def test_a_wider_tolerance_would_not_have_spoken(ran, tmp_path):
    text = "live: {throughput: {tolerance: 0.15}}\nstages: {gpus_8: {finite_loss: {shadow: true}}}"
    stage, rules = judged(ran(slow), tmp_path, text)
    assert rules["throughput"][2] == "no alarm"
    [row] = [row for row in stage.gates if row.gate == "throughput"]
    assert row.changed and row.by_policy and row.reason.startswith("then: steps take ")


def test_one_stage_has_the_last_word_over_all(ran, tmp_path):
    text = "live: {throughput: {action: stop}}\nstages: {gpus_8: {live: {throughput: {action: note}}}}"
    assert judged(ran(slow), tmp_path, text)[1]["throughput"][2].startswith("note at step ")


def test_a_stage_that_would_not_have_been_stopped_is_unknown(ran, tmp_path):
    run = ran(high)
    assert read_json(run.stage("gpus_8").cause)["cause"] == "live"
    own, rules = judged(run, tmp_path, "live: {hang: {steps: 30}}")
    assert (own.recorded, own.today, own.anew) == ("STOPPED",) * 3
    assert len(set(rules["loss"])) == 1 and re.fullmatch(r"note at step \d+; stop at step \d+", rules["loss"][0])
    other, rules = judged(run, tmp_path, "live: {loss: {tolerance: 0.5}, spikes: {action: note}}")
    assert rules["loss"][2] == "no alarm"
    assert (other.recorded, other.today, other.anew, other.promotion_changed) == ("STOPPED", "STOPPED", "UNKNOWN", None)


def test_what_comes_after_a_restart_that_was_not_made_nobody_knows(ran, tmp_path):
    run = ran(gone, live={"finite": {"action": "page"}})
    stage, rules = judged(run, tmp_path, "live: {finite: {action: restart}}")
    assert rules["finite"] == ("page at step 700", "page at step 700", "restart at step 700")
    assert (stage.recorded, stage.anew) == ("FAIL", "UNKNOWN")


def test_the_terminal_shows_live_rules_beside_gates(ran, tmp_path, capsys):
    stage = ran(slow).stage("gpus_8")
    write_json(stage.promotion, {"by": "gates", "because": "all passed", "checkpoint": {"step": 1, "tokens": 1}})
    path = tmp_path / "gates.yaml"
    path.write_text("live: {throughput: {action: stop}}")
    assert main(["rejudge", "latest", "--gates", str(path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "gpus_8: hang is not judged anew" in out and "gpus_8: PASS -> STOPPED" in out
    assert out.endswith("1 of 1 promotions would have changed")
    assert main(["rejudge", "latest", "--gates", str(path), "--json"]) == 0
    [judged] = json.loads(capsys.readouterr().out)["runs"][0]["stages"]
    assert [row["moment"] for row in judged["gates"] if row["gate"] == "throughput"] == ["live"] and judged["notes"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("live: {trougput: {}}", "live: unknown key 'trougput'; did you mean throughput?"),
        ("live: {throughput: {tolerance: 0.001}}", "live.throughput.tolerance: must be at least 0.01, not 0.001"),
        ("stages: {gpus_8: {live: {loss: {action: sop}}}}", "stages.gpus_8.live.loss.action: must be "),
        ("live: 5", "live: must be a mapping of keys to values, not 5"),
        ("stages: {gpus_8: {live: 5}}", "stages.gpus_8.live: must be a mapping"),
    ],
)
def test_what_is_wrong_with_live_rules_is_said_at_its_place(configs, tmp_path, capsys, text, said):
    path = tmp_path / "gates.yaml"
    path.write_text(text)
    run = open_ladder(configs)
    with pytest.raises(Exception, match=re.escape(said)):
        read_policy(str(path), [ladder_of(run)])
