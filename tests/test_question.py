"""What a person is asked where gates could not decide: distance, sureness, prices, and what each answer does."""

import pytest
from gate_folders import THREE_STAGES, open_ladder, write_records

from tasks.errors import DecisionNeeded
from tasks.evaluate import evaluate
from tasks.forecast import forecast
from tasks.question import question
from tasks.stage_dir import write_json

UNDECIDED = {"finite_loss": {}, "stall_free": {"shadow": True}, "steady_throughput": {"half_width": 0.001}}


def asked(configs, stages, **stage_of):
    """Return the question of a first stage whose throughput is not known as sharply as was asked."""
    first = {**THREE_STAGES["stages"][0], "gates": UNDECIDED, **stage_of}
    every = [{"hours": 2, "steps": 90, "learning_rate": 0.002, **one} for one in (first, *stages)]
    stage = open_ladder(configs, stages=every).stage("gpus_8")
    forecast(stage)
    write_json(stage.config, {"gpus": 8})
    write_records(stage, 100.0)
    with pytest.raises(DecisionNeeded):
        evaluate(stage)
    return question(stage)


def test_it_says_what_is_open_by_how_much_how_surely_and_what_each_answer_costs(configs):
    said = asked(configs, [{**THREE_STAGES["stages"][1], "gates": {"finite_loss": {}, "canary": {}}}], probes=0)
    head, *sections = said.split("\n#### ")
    assert "steady_throughput could not be decided; nothing speaks against it" in head
    assert "(`probes: 0`)" in head
    found, answer, others = sections
    for line in (
        "? steady_throughput\n",
        "- **Found:** ",
        "- **How far:** ",
        "- **How sure:** Not sure: the 95% interval is",
    ):
        assert line in found
    assert "Launch sd: prior, 0.005." in found and "It costs " in found and "To be wrong costs " in found
    assert "**Approve** promotes gpus_8 under your name and starts **gpus_64: at most 128 GPU-hours, $256" in answer
    assert "its canary stops it" in answer and "**No answer** within 72 h is a Reject." in answer
    assert 'scaleup promote ladder/run_1 gpus_8 --because "..."' in answer
    assert "| finite_loss | ✓ passed |" in others and "| stall_free | ✓ passed (shadow) |" in others
    assert "steady_throughput" not in others and "Speeds are modelled" in others


def test_after_the_last_stage_a_yes_spends_nothing_more(configs):
    said = asked(configs, [], probes=2)
    assert "0 of 2 probes that it may buy were run." in said
    assert "It is the last stage: nothing more is spent." in said and "starts **" not in said
