"""The ladder as numbers: learning rates by rule, prices, the trainer's orders, what gates may know, the table."""

from __future__ import annotations

import json
import math

import pytest
from small_ladder import CLUSTERS, experiment, ladder

from tasks import config, plan
from tasks.config.experiment import LearningRateRule
from tasks.errors import ConfigInvalid
from training.config import TrainConfig


@pytest.mark.parametrize(("rule", "factor"), [("sqrt", math.sqrt(2)), ("linear", 2.0), ("keep", 1.0)])
def test_a_learning_rate_follows_the_batch_by_its_rule(rule: str, factor: float) -> None:
    rate = {"rule": rule, "from": "gpus_8"}
    first, second, _ = ladder(stages={1: {"learning_rate": rate}}).stages
    assert second.learning_rate == pytest.approx(first.learning_rate * factor)


def test_a_rule_may_skip_a_stage_and_follow_another_rule() -> None:
    rates = {
        1: {"learning_rate": {"rule": "linear", "from": "gpus_8"}},
        2: {"learning_rate": {"rule": "sqrt", "from": "gpus_8"}},
    }
    first, second, third = ladder(stages=rates).stages
    assert second.learning_rate == pytest.approx(3e-4 * 2)
    assert third.learning_rate == pytest.approx(3e-4 * math.sqrt(1000 / 64))
    assert first.learning_rate == 3e-4


def test_a_rule_gives_each_batch_of_a_growing_one_its_rate() -> None:
    grows = [{"sequences": 64}, {"sequences": 256, "from_tokens": 100_000}]
    _, second, _ = ladder(stages={1: {"batch_sequences": grows}}).stages
    assert {span.batch_sequences: span.learning_rate for span in second.own_spans} == {
        64: pytest.approx(3e-4),
        256: pytest.approx(6e-4),
    }


@pytest.mark.parametrize(("rule", "last"), [("sqrt", 6e-4), ("linear", 1.2e-3), ("keep", 3e-4)])
def test_a_growing_batch_of_a_stage_of_its_own_has_a_rule_of_its_own(rule: str, last: float) -> None:
    grows = [{"sequences": 32}, {"sequences": 64, "from_tokens": 10_000}, {"sequences": 128, "from_tokens": 30_000}]
    own = {"batch_sequences": grows, "learning_rate": {"rule": rule, "rate": 3e-4}}
    of_ladder = ladder(stages={0: own, 1: {"learning_rate": {"rule": "keep", "from": "gpus_8"}}})
    first, second, _ = of_ladder.stages
    assert first.rates == (3e-4, pytest.approx(math.sqrt(3e-4 * last)), pytest.approx(last))
    assert [span.learning_rate for span in first.own_spans] == list(first.rates)
    assert second.rates == (pytest.approx(last),), "the next stage goes on from the last"
    row = plan.table(of_ladder)[0]
    assert (row["learning_rate"], row["batch_sequences"]) == (list(first.real_rates), [32, 64, 128])


def test_a_number_is_the_rate_of_every_batch() -> None:
    grows = [{"sequences": 32}, {"sequences": 128, "from_tokens": 30_000}]
    assert ladder(stages={0: {"batch_sequences": grows}}).stages[0].rates == (3e-4, 3e-4)


def test_the_second_moment_is_meant_for_the_ladders_first_batch() -> None:
    optimizer = {"betas": [0.9, 0.99], "second_moment": "tokens"}
    train = {**experiment().train.model_dump(mode="json", by_alias=True), "optimizer": optimizer}
    climbed = ladder(train=train, stages={2: {"batch_sequences": 4096}})
    orders = [plan.train_config(stage, "r", 1).optimizer for stage in climbed.stages]
    assert [order.reference_batch_sequences for order in orders] == [64] * 3
    shown = [row["second_beta"] for row in plan.table(climbed)]
    assert shown == [[0.99], [pytest.approx(0.99**2)], [0.9]], "never below the first beta"
    optimizer["second_moment"] = "steps"
    steps = plan.train_config(ladder(train=train).stages[2], "r", 1).optimizer
    assert (steps.reference_batch_sequences, steps.second_beta(1000)) == (None, 0.99)


def test_wsd_decays_in_the_last_steps_of_the_whole_ladder() -> None:
    shape = {"kind": "wsd", "warmup_steps": 10, "decay_part": 0.25, "floor": 0.0}
    train = {**experiment().train.model_dump(mode="json", by_alias=True), "schedule": shape}
    stages = ladder(train=train, stages={1: {"tokens": None, "steps": 60}}).stages
    schedule = stages[0].spans[-1].schedule
    assert {span.schedule for stage in stages for span in stage.spans} == {schedule}
    assert (schedule.total_steps, schedule.decay_steps) == (160, 40)
    assert [schedule.factor(step) for step in (5, 10, 120, 130, 160)] == [0.5, 1.0, 1.0, 0.5, 0.0]


def test_rules_scale_by_a_factor() -> None:
    assert LearningRateRule(rule="sqrt", from_="gpus_8").factor(16) == 4


def test_a_rehearsal_scales_its_own_batches_and_the_real_recipe_its_own() -> None:
    real, small = plan.resolve(config.load_experiment("gpt_stdlib", gates=False)).stages[:2]
    assert real.learning_rate == 3e-3
    assert small.learning_rate == pytest.approx(3e-3 * math.sqrt(256 / 128))
    assert small.real_rates[-1] == pytest.approx(1.5e-4 * math.sqrt(256 / 32))


def test_the_shipped_ladder_climbs_8_64_1000() -> None:
    stages = plan.resolve(config.load_experiment("gpt_stdlib", gates=False)).stages
    assert [(s.name, s.nodes, s.tier, s.emulated) for s in stages] == [
        ("gpus_8", 1, 0, True),
        ("gpus_64", 8, 1, True),
        ("gpus_1000", 125, 3, True),
    ]
    assert [s.spans[-1].batch_sequences for s in stages] == [128, 256, 1000]
    assert [s.throughput_batch_tokens for s in stages] == [n * 4096 for n in (32, 256, 4000)]
    assert [s.batch_tokens for s in stages] == [n * 32 for n in (128, 256, 1000)]
    assert [s.steps_in("train") for s in stages] == [90, 70, 70]


def test_hours_are_the_jobs_and_money_is_the_real_recipes() -> None:
    stages = plan.resolve(config.load_experiment("gpt_stdlib", gates=False)).stages
    assert [s.hours for s in stages] == [0.5, 0.5, 0.5]
    assert [s.gpu_hours for s in stages] == [8 * 6, 64 * 6, 1000 * 6]
    assert [s.cost for s in stages] == [8 * 6 * 2.5, 64 * 6 * 2.5, 1000 * 6 * 2.5]


def test_the_trainers_orders_hold_the_recipe_and_what_stands_in_for_the_gpus() -> None:
    stage = plan.resolve(config.load_experiment("gpt_stdlib", gates=False), seed=5).stage("gpus_1000")
    orders = plan.train_config(stage, "20260101_000000", 2, "/store/x")
    assert TrainConfig.from_json(json.loads(json.dumps(orders.to_json()))) == orders
    assert (orders.experiment, orders.run_id, orders.stage, orders.attempt) == (
        "gpt_stdlib",
        "20260101_000000",
        "gpus_1000",
        2,
    )
    assert (orders.start.kind, orders.start.step, orders.start.checkpoint) == ("continue", 160, "/store/x")
    assert (orders.gpus, orders.seed, orders.processes, orders.model.hidden) == (1000, 5, 2, 64)
    emulation = orders.emulation
    assert emulation is not None
    assert (emulation.recipe_model.hidden, emulation.recipe_batch_sequences, emulation.recipe_shard) == (4096, 4000, 8)
    assert (emulation.between_nodes.gbytes_per_second, emulation.tiers[-1], emulation.seed) == (50, (1024, 0.95), 5)


def test_real_gpus_are_not_emulated() -> None:
    real = {"c": CLUSTERS["c"].model_copy(update={"emulated": False})}
    stage = plan.resolve(experiment(), clusters=real).stages[0]
    assert (stage.modelled, plan.train_config(stage, "r", 1).emulation) == (None, None)
    assert stage.throughput_batch_tokens == stage.batch_tokens == 64 * 32


def test_facts_are_what_gates_may_know() -> None:
    facts = ladder().stage("gpus_64").facts("abc")
    assert (facts.name, facts.gpus, facts.nodes, facts.tier, facts.fingerprint) == ("gpus_64", 64, 8, 1, "abc")
    assert (facts.first_step, facts.batch_tokens, facts.emulated) == (51, 128 * 32, True)


def test_an_unknown_stage_is_answered_with_those_of_the_run() -> None:
    with pytest.raises(ConfigInvalid, match="did you mean gpus_64"):
        ladder().stage("gpus_640")


def test_a_gate_asked_twice_keeps_its_name() -> None:
    gates = plan.resolve(config.load_experiment("gpt_stdlib", gates=False)).stages[2].gates
    asked = [name for name in gates if plan.gate_name(name) == "scaling_efficiency"]
    assert [gates[name]["reference"] for name in asked] == ["gpus_64", "gpus_8"]


def test_the_table_shows_the_real_recipe_and_what_is_trained_in_its_place() -> None:
    rows = plan.table(plan.resolve(config.load_experiment("gpt_stdlib", gates=False)))
    last = rows[-1]
    assert [row["stage"] for row in rows] == ["gpus_8", "gpus_64", "gpus_1000"]
    assert (last["nodes"], last["layout"], last["batch_sequences"]) == (125, "shard 8 x replicate 125", [4000])
    assert (last["batch_tokens"], last["start"], last["cost"]) == (4000 * 4096, "continue gpus_64", 15000)
    assert 1e11 <= last["tokens"] < 1e11 + last["batch_tokens"]
    assert last["tokens"] == last["steps"] * last["batch_tokens"]
    rehearsed = last["rehearsal"]
    assert (rehearsed["steps"], rehearsed["layout"], rehearsed["processes"]) == (90, "replicate 1000", 2)
    assert (rehearsed["replay_steps"], rehearsed["canary_steps"]) == (20, 20)
    assert (last["replay_steps"], last["canary_steps"]) == (60, 60)
