"""The ladder as numbers: spans without gap, tokens carried on, learning rates by rule, what a frozen recipe says."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
import yaml
from config_texts import CLUSTER, EXPERIMENT
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import config, plan
from tasks.config.as_trained import segments
from tasks.config.cluster import Cluster
from tasks.config.experiment import BatchFrom, Experiment, LearningRateRule
from tasks.errors import ConfigInvalid
from training.config import TrainConfig

CLUSTERS = {"c": Cluster.model_validate({**yaml.safe_load(CLUSTER), "name": "c"})}


def experiment(**changes: Any) -> Experiment:
    """Return the experiment of the texts with top-level keys changed; ``stages`` maps an index to changed keys."""
    raw = yaml.safe_load(EXPERIMENT)
    for index, keys in changes.pop("stages", {}).items():
        raw["stages"][index].update(keys)
        raw["stages"][index] = {key: value for key, value in raw["stages"][index].items() if value is not None}
    return Experiment.model_validate({**raw, **changes, "name": "x"})


def ladder(**changes: Any) -> plan.Ladder:
    return plan.resolve(experiment(**changes), clusters=CLUSTERS)


def spans(stage: plan.StagePlan) -> list[tuple[str, int, int, int]]:
    return [(span.phase, span.first_step, span.last_step, span.batch_sequences) for span in stage.spans]


def test_three_stages_hand_over_replay_and_go_on() -> None:
    first, second, third = ladder(stages={1: {"tokens": None, "steps": 60}}).stages
    assert spans(first) == [("train", 1, 50, 64)]
    assert spans(second) == [("replay", 41, 50, 64), ("canary", 51, 60, 128), ("train", 61, 110, 128)]
    assert spans(third) == [("replay", 101, 110, 128), ("canary", 111, 120, 1000), ("train", 121, 160, 1000)]
    assert [stage.hand_over_step for stage in (first, second, third)] == [40, 100, None]
    assert [(stage.first_step, stage.last_step) for stage in (first, second, third)] == [(1, 50), (51, 110), (111, 160)]
    assert [(stage.start.kind, stage.start.step) for stage in (first, second, third)] == [
        ("scratch", 0),
        ("continue", 40),
        ("continue", 100),
    ]
    assert [(stage.previous, stage.next) for stage in (first, second, third)] == [
        (None, "gpus_64"),
        ("gpus_8", "gpus_1000"),
        ("gpus_64", None),
    ]


def test_tokens_go_on_where_the_stage_before_ended() -> None:
    first, second, third = ladder(stages={1: {"tokens": None, "steps": 60}}).stages
    assert (first.tokens_first, first.tokens_last) == (0, 50 * 64 * 32)
    assert (second.tokens_first, second.tokens_last) == (first.tokens_last, first.tokens_last + 60 * 128 * 32)
    assert (third.tokens_first, third.tokens_last) == (second.tokens_last, second.tokens_last + 50 * 1000 * 32)


def test_a_replay_is_the_stage_before_in_batch_rate_and_schedule() -> None:
    first, second, _ = ladder().stages
    replayed = second.spans[0]
    assert replayed.phase == "replay"
    assert replayed.batch_sequences == first.spans[-1].batch_sequences
    assert replayed.learning_rate == first.spans[-1].learning_rate != second.spans[-1].learning_rate
    for step in range(replayed.first_step, replayed.last_step + 1):
        assert replayed.schedule.factor(step) == first.spans[-1].schedule.factor(step)


def test_a_replay_crosses_the_batches_of_the_stage_before() -> None:
    grows = [{"sequences": 64}, {"sequences": 128, "from_tokens": 64 * 32 * 45}]
    first, second, _ = ladder(stages={0: {"batch_sequences": grows}}).stages
    assert spans(first) == [("train", 1, 45, 64), ("train", 46, 50, 128)]
    assert spans(second)[:3] == [("replay", 41, 45, 64), ("replay", 46, 50, 128), ("canary", 51, 60, 128)]


def test_a_batch_that_grows_within_the_canary_splits_it() -> None:
    grows = [{"sequences": 64}, {"sequences": 128, "from_tokens": 64 * 32 * 4}]
    _, second, _ = ladder(stages={1: {"batch_sequences": grows, "tokens": None, "steps": 30}}).stages
    assert spans(second)[1:] == [("canary", 51, 54, 64), ("canary", 55, 60, 128), ("train", 61, 80, 128)]


def test_a_trainer_that_cannot_replay_begins_with_the_canary_at_the_hand_over() -> None:
    trainer = {"name": "mine", "command": ["run", "{stage_dir}"], "capabilities": ["resume"]}
    first, second, third = ladder(trainer=trainer, stages={1: {"tokens": None, "steps": 60}}).stages
    assert first.hand_over_step == 40
    assert spans(second) == [("canary", 41, 50, 128), ("train", 51, 100, 128)]
    assert spans(third) == [("canary", 91, 100, 1000), ("train", 101, 140, 1000)]
    assert second.tokens_first == 40 * 64 * 32
    assert third.tokens_first == second.tokens_first + 50 * 128 * 32


@pytest.mark.parametrize("start", ["scratch", {"weights": "kept/step_00000100"}])
def test_a_stage_that_continues_none_counts_from_one_again(start: Any) -> None:
    first, second, third = ladder(stages={1: {"start": start, "tokens": None, "steps": 60}}).stages
    assert first.hand_over_step is None
    assert spans(second) == [("canary", 1, 10, 128), ("train", 11, 60, 128)]
    assert (second.previous, second.start.step, second.tokens_first) == (None, 0, 0)
    assert second.start.checkpoint == (None if start == "scratch" else "kept/step_00000100")
    assert spans(third)[0] == ("replay", 51, 60, 128)
    assert first.spans[0].schedule.total_steps == 50
    assert second.spans[0].schedule.total_steps == third.spans[0].schedule.total_steps == 110


def test_one_schedule_spans_the_stages_that_continue_one_another() -> None:
    train = {**yaml.safe_load(EXPERIMENT)["train"], "schedule": {"kind": "cosine", "warmup_steps": 10, "floor": 0.2}}
    stages = ladder(train=train, stages={1: {"tokens": None, "steps": 60}}).stages
    own = [
        (span, step)
        for stage in stages
        for span in stage.own_spans
        for step in range(span.first_step, span.last_step + 1)
    ]
    factors = [span.schedule.factor(step) for span, step in own]
    assert [step for _, step in own] == list(range(1, 161))
    assert factors[9] == 1.0
    assert all(after < before for before, after in pairwise(factors[9:]))
    assert factors[-1] == pytest.approx(0.2)


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


def test_rules_scale_by_a_factor() -> None:
    assert LearningRateRule(rule="sqrt", from_="gpus_8").factor(16) == 4


def test_a_rehearsal_scales_its_own_batches_and_the_real_recipe_its_own() -> None:
    real, small = plan.resolve(config.load_experiment("gpt_stdlib", gates=False)).stages[:2]
    assert real.learning_rate == 3e-3
    assert small.learning_rate == pytest.approx(3e-3 * math.sqrt(256 / 128))
    assert small.real_learning_rate == pytest.approx(1.5e-4 * math.sqrt(256 / 32))


def test_tokens_become_the_fewest_steps_that_reach_them() -> None:
    _, second, _ = ladder().stages
    steps = second.last_step - second.first_step + 1
    assert (steps - 1) * 128 * 32 < 500_000 <= steps * 128 * 32


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=4),
    gaps=st.lists(st.integers(1, 5000), min_size=3, max_size=3),
    sequence=st.integers(1, 64),
    steps=st.none() | st.integers(1, 300),
    tokens=st.integers(1, 200_000),
)
def test_segments_end_as_soon_as_they_may(
    sizes: list[int], gaps: list[int], sequence: int, steps: int | None, tokens: int
) -> None:
    marks = [sum(gaps[:index]) for index in range(len(sizes))]
    batches = tuple(BatchFrom(sequences=size, from_tokens=mark) for size, mark in zip(sizes, marks, strict=True))
    found = segments(batches, sequence, steps, None if steps else tokens)
    if steps:
        assert sum(count for _, count in found) == steps
    done = 0
    for size, count in found:
        for _ in range(count):
            in_force = max(index for index, mark in enumerate(marks) if mark <= done)
            assert size == sizes[in_force]
            assert steps or done < tokens
            done += size * sequence
    assert steps or done >= tokens


@st.composite
def ladders(draw: st.DrawFn) -> Experiment:
    """Draw an experiment of one to four stages, each of its own batches, length and start."""
    raw = yaml.safe_load(EXPERIMENT)
    hand_over, canary = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    sizes = sorted(draw(st.sets(st.sampled_from([1, 2, 4, 8, 16, 64, 512, 1000]), min_size=1, max_size=4)))
    stages = []
    for index, gpus in enumerate(sizes):
        stage = copy.deepcopy(raw["stages"][0])
        first, second = draw(st.integers(gpus, 2000)), draw(st.integers(gpus, 2000))
        steps = draw(st.integers(hand_over + canary + 1, 60))
        boundary = draw(st.integers(1, steps - 1)) * first * 32
        grows = [{"sequences": first}, {"sequences": second, "from_tokens": boundary}]
        stage.update(gpus=gpus, steps=steps, batch_sequences=draw(st.sampled_from([first, grows])))
        stage.update(start=draw(st.sampled_from(["continue", "continue", "scratch"])) if index else "scratch")
        stages.append(stage)
    trainer = {"name": "mine", "command": ["run"], "capabilities": draw(st.sampled_from([["replay"], []]))}
    keys = {"name": "x", "stages": stages, "hand_over_steps": hand_over, "canary_steps": canary, "rehearsal": {}}
    return Experiment.model_validate({**raw, **keys, "trainer": trainer})


@settings(max_examples=150, deadline=None)
@given(drawn=ladders())
def test_spans_cover_all_steps_once_and_replays_repeat_them_exactly(drawn: Experiment) -> None:
    stages = plan.resolve(drawn, clusters=CLUSTERS).stages
    seen: dict[int, tuple[int, float, Any]] = {}  # what each step of the ladder was, by its number
    consumed: dict[int, int] = {}  # sequences before each step, so where its samples begin
    for before, stage in zip([None, *stages], stages, strict=False):
        if stage.previous is None:
            seen, consumed = {}, {1: 0}
        steps = [step for span in stage.spans for step in range(span.first_step, span.last_step + 1)]
        assert steps == list(range(stage.start.step + 1, stage.last_step + 1))
        if before is not None and stage.previous:
            assert (stage.previous, before.hand_over_step) == (before.name, stage.start.step)
        for span in stage.spans:
            for step in range(span.first_step, span.last_step + 1):
                now = (span.batch_sequences, span.learning_rate, span.schedule)
                if span.phase == "replay":
                    assert seen[step] == now
                seen[step] = now
                consumed[step + 1] = consumed[step] + span.batch_sequences
        assert consumed[stage.first_step] * 32 == stage.tokens_first
        assert consumed[stage.last_step + 1] * 32 == stage.tokens_last
        assert stage.steps_in("canary") == (drawn.canary_steps if stage.index else 0)
        assert stage.steps_in("replay") == (
            drawn.hand_over_steps if stage.previous and drawn.trainer.can("replay") else 0
        )
        assert all(span.schedule == stage.spans[-1].schedule for span in stage.own_spans)
        assert TrainConfig.from_json(plan.train_config(stage, "r", 1).to_json()).spans == stage.spans


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


def test_the_last_chosen_stage_hands_over_to_none() -> None:
    stages = plan.resolve(experiment(), clusters=CLUSTERS, last="gpus_64").stages
    assert [(s.name, s.next, s.hand_over_step is None) for s in stages] == [
        ("gpus_8", "gpus_64", False),
        ("gpus_64", None, True),
    ]


def test_a_stage_from_scratch_may_be_the_first() -> None:
    changed = experiment(stages={1: {"start": "scratch", "gates": {"finite_loss": None}}})
    stages = plan.resolve(changed, clusters=CLUSTERS, first="gpus_64").stages
    assert [s.name for s in stages] == ["gpus_64", "gpus_1000"]
    whole = plan.resolve(changed, clusters=CLUSTERS).stages
    assert stages[0].learning_rate == whole[1].learning_rate  # by a rule from a stage that is not chosen


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        (
            {"first": "gpus_9"},
            "first: unknown stage 'gpus_9'; did you mean gpus_8? the stages are gpus_8, gpus_64, gpus_1000",
        ),
        (
            {"last": "gpus64"},
            "last: unknown stage 'gpus64'; did you mean gpus_64? the stages are gpus_8, gpus_64, gpus_1000",
        ),
        ({"first": "gpus_64", "last": "gpus_8"}, "first: gpus_64 comes after the last stage, gpus_8; swap them"),
        (
            {"first": "gpus_64"},
            "first: gpus_64 continues gpus_8, and a run cannot take over another run's promotion; start with gpus_8, "
            "or give gpus_64 start: scratch or {weights: PATH}",
        ),
    ],
)
def test_a_choice_of_stages_that_cannot_be_climbed_is_refused(chosen: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigInvalid) as raised:
        plan.resolve(experiment(), clusters=CLUSTERS, **chosen)  # type: ignore[arg-type]
    assert str(raised.value) == f"experiment x cannot be climbed so:\n  {says}"


def test_a_reference_that_the_chosen_stages_leave_out_is_refused() -> None:
    gates = {"scaling_efficiency": {"reference": "gpus_8", "at_least": 0.8}}
    changed = experiment(stages={1: {"start": "scratch", "gates": gates}})
    with pytest.raises(ConfigInvalid) as raised:
        plan.resolve(changed, clusters=CLUSTERS, first="gpus_64")
    assert str(raised.value) == (
        "experiment x cannot be climbed so:\n  first: scaling_efficiency of gpus_64 compares with gpus_8, which would "
        "not be climbed; start with gpus_8"
    )


def test_a_cluster_that_is_too_small_is_refused_when_it_is_chosen() -> None:
    small = {"small": CLUSTERS["c"].model_copy(update={"name": "small", "nodes": 8})}
    with pytest.raises(ConfigInvalid, match="1000 GPUs are more than the 64 of cluster small"):
        plan.resolve(experiment(), cluster="small", clusters=small)


def test_a_stage_keeps_its_own_cluster_when_another_is_chosen() -> None:
    there = {**CLUSTERS, "d": CLUSTERS["c"].model_copy(update={"name": "d"})}
    stages = plan.resolve(experiment(stages={1: {"cluster": "c"}}), cluster="d", clusters=there).stages
    assert [stage.cluster.name for stage in stages] == ["d", "c", "d"]


def test_a_frozen_recipe_gives_the_same_ladder() -> None:
    loaded = config.load_experiment("gpt_stdlib", gates=False)
    frozen = json.loads(json.dumps(plan.freeze(loaded, config.clusters_of(loaded)), allow_nan=False))
    thawed, clusters = plan.thaw(frozen)
    assert thawed == loaded
    assert plan.resolve(thawed, clusters=clusters).digest == plan.resolve(loaded).digest
    assert plan.difference(frozen, json.loads(json.dumps(plan.freeze(thawed, clusters)))) == []


def test_a_difference_names_the_place_and_both_values() -> None:
    before = plan.freeze(experiment(), CLUSTERS)
    changed = experiment(seed=2, stages={1: {"batch_sequences": 256, "gates": {"finite_loss": None}}})
    clusters = {"c": CLUSTERS["c"].model_copy(update={"price_per_gpu_hour": 3.0})}
    assert plan.difference(before, plan.freeze(changed, clusters)) == [
        "seed: 1 -> 2",
        "stages.1.batch_sequences: 128 -> 256",
        "stages.1.gates.replay_parity: {} -> (absent)",
        "stages.1.gates.scaling_efficiency.reference: gpus_8 -> (absent)",
        "stages.1.gates.scaling_efficiency.at_least: 0.8 -> (absent)",
        "clusters.c.price_per_gpu_hour: 2.5 -> 3.0",
        "stages.1.gates.finite_loss: (absent) -> {}",
    ]


def test_a_recipe_of_another_version_is_refused() -> None:
    frozen = plan.freeze(experiment(), CLUSTERS)
    frozen["experiment"]["sead"] = 1
    with pytest.raises(ConfigInvalid, match="another version of scaleup wrote it"):
        plan.thaw(frozen)


def test_the_digest_follows_everything_that_decides_and_is_the_same_in_every_process() -> None:
    base = ladder().digest
    assert base == ladder().digest != ladder(seed=2).digest
    assert base != ladder(stages={0: {"gates": {"finite_loss": None, "steady_throughput": None}}}).digest
    assert base == ladder(description="another word").digest
    program = (
        "from tasks import config, plan\nprint(plan.resolve(config.load_experiment('gpt_stdlib', gates=False)).digest)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == plan.resolve(config.load_experiment("gpt_stdlib", gates=False)).digest


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
