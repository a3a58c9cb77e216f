"""Which stages a run climbs, and the recipe that it froze: the same ladder, named differences, one digest."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from small_ladder import CLUSTERS, experiment, ladder

from tasks import config, plan
from tasks.errors import ConfigInvalid


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
