"""The modelled step, checked by hand on round numbers, and its noise: a function of seed and step alone."""

import dataclasses
import math
import statistics
import subprocess
import sys

import pytest
from trained import EMULATION

from training import step_time
from training.config import ConfigError, Link, ModelShape

# 8 layers of width 100, no attention FLOPs to speak of: round numbers can be followed by hand.
SHAPE = ModelShape(layers=8, hidden=100, heads=1, ffn=300, vocabulary=1000)
QUIET = dataclasses.replace(
    EMULATION,
    recipe_model=SHAPE,
    recipe_sequence_length=100,
    recipe_batch_sequences=64,
    recipe_micro_batch_sequences=1,
    recipe_shard=1,
    flops_per_gpu=1e12,
    inside_node=Link(0.0, 100.0),
    between_nodes=Link(10.0, 1.0),
    overlap=0.0,
    launch_sd=0.0,
    step_sd=0.0,
    spike_rate=0.0,
    recipe_activation_checkpointing=False,
)


def changed(**values: object) -> step_time.Emulation:
    return dataclasses.replace(QUIET, **values)  # type: ignore[arg-type]


def test_computing_is_flops_by_speed_a_third_of_it_forward():
    found = step_time.ideal(changed(inside_node=Link(0, 1e9)), 8)
    flops = SHAPE.flops_per_token(100) * 8 * 100  # 64 sequences on 8 GPUs
    assert found.forward + found.backward == pytest.approx(flops / 1e12)
    assert found.backward == pytest.approx(2 * found.forward)
    recomputed = step_time.ideal(changed(inside_node=Link(0, 1e9), recipe_activation_checkpointing=True), 8)
    assert recomputed.backward == pytest.approx(3 * found.forward)


def test_all_wait_for_the_rank_with_most_sequences():
    even, uneven = (step_time.ideal(changed(recipe_batch_sequences=n), 8).forward for n in (64, 65))
    assert uneven == pytest.approx(even * 9 / 8)


def test_replicas_reduce_over_a_ring_by_hockney():
    size = SHAPE.parameters * 4
    inside = step_time.ideal(QUIET, 8)
    assert inside.communication == pytest.approx(2 * 7 / 8 * size / 100e9)
    outside = step_time.ideal(QUIET, 64)
    latency = 8 * 2 * 63 * 10e-6  # eight layers, each a ring of 126 hops
    assert outside.communication == pytest.approx(latency + 2 * 63 / 64 * size / 1e9)
    tiered = step_time.ideal(changed(tiers=((8, 1.0), (1000, 0.5))), 64)
    assert tiered.communication == pytest.approx(latency + 2 * 63 / 64 * size / 0.5e9)


def test_shards_gather_twice_and_scatter_once_a_micro_batch_and_reduce_an_eighth_each():
    found = step_time.ideal(changed(recipe_shard=8), 64)  # one sequence a rank: one micro-batch
    n = SHAPE.parameters
    shards = 7 / 8 * n * (2 * 2 + 4) / 100e9
    replicas = 8 * 2 * 7 * 10e-6 + 2 * 7 / 8 * (n / 8 * 4) / 1e9
    assert found.communication == pytest.approx(shards + replicas)
    more = step_time.ideal(changed(recipe_shard=8, recipe_batch_sequences=256), 64)
    assert more.communication == pytest.approx(4 * shards + replicas)


def test_a_shard_group_wider_than_a_node_uses_the_network():
    wide, narrow = (step_time.ideal(changed(recipe_shard=s), 16).communication for s in (16, 8))
    assert wide > 5 * narrow


def test_communication_hides_behind_computing_as_far_as_it_overlaps():
    shown = step_time.ideal(QUIET, 64)
    compute = shown.forward + shown.backward
    half = step_time.ideal(changed(overlap=0.5), 64)
    assert half.communication == pytest.approx(max(0.0, shown.communication - 0.5 * compute))
    fast = step_time.ideal(changed(overlap=0.5, between_nodes=Link(0, 1e6)), 64)
    assert fast.communication == 0.0


def test_a_pipeline_waits_for_its_bubble_and_tensor_ranks_for_each_other():
    flat = step_time.ideal(QUIET, 64)
    piped = step_time.ideal(changed(recipe_pipeline=4, recipe_batch_sequences=64), 64)  # 4 micro-batches a rank
    assert piped.forward == pytest.approx(flat.forward * (1 + 3 / 4))
    split = step_time.ideal(changed(recipe_tensor=4, overlap=1e9), 64)
    activations = 1 * 100 * 100 * 2
    assert split.communication == pytest.approx(4 * 4 * 8 * 2 * 3 / 4 * activations / 100e9)


def test_memory_shrinks_with_shards_and_with_checkpointed_activations():
    one, eight = (step_time.memory_gib(dataclasses.replace(EMULATION, recipe_shard=s), 64) for s in (1, 8))
    state = EMULATION.recipe_model.parameters * 16 / 2**30
    assert one > state
    assert eight < one - state * 0.8
    kept = step_time.memory_gib(dataclasses.replace(EMULATION, recipe_activation_checkpointing=False), 64)
    assert kept - eight == pytest.approx(32 * 4096 * 4096 * (34 - 2) / 2**30)


def test_what_no_cluster_can_run_is_refused_with_the_knobs_to_turn():
    with pytest.raises(
        ConfigError, match=r"1000 GPUs do not divide into groups of 16 \(tensor 8 x pipeline 2 x shard 1\)"
    ):
        step_time.ideal(changed(recipe_tensor=8, recipe_pipeline=2), 1000)
    with pytest.raises(
        ConfigError, match=r"needs 1\d\d\.\d GiB a GPU on 64 GPUs \(modelled\), which have 80; shard over"
    ):
        step_time.refuse_impossible(dataclasses.replace(EMULATION, recipe_shard=1), 64)
    step_time.refuse_impossible(EMULATION, 64)


def test_a_step_of_a_launch_is_always_the_same_and_another_launch_is_another():
    first = [step_time.drawn(EMULATION, 64, 1, step) for step in range(1, 30)]
    assert first[::-1] == [step_time.drawn(EMULATION, 64, 1, step) for step in range(29, 0, -1)]
    again = [step_time.drawn(EMULATION, 64, 2, step) for step in range(1, 30)]
    ratios = [a.total / b.total for a, b in zip(first, again, strict=True)]
    assert ratios == pytest.approx([ratios[0]] * 29), "a launch is one factor on all its steps"
    assert 0.0 < abs(math.log(ratios[0])) < 5 * 0.005
    seeded = step_time.drawn(dataclasses.replace(EMULATION, seed=4), 64, 1, 7)
    assert seeded != first[6]


def test_the_noise_has_the_spread_and_the_memory_that_were_asked_for():
    for coefficient in (0.0, 0.3, 0.8):
        series = [step_time.correlated(5, 64, step, coefficient) for step in range(4000)]
        assert statistics.mean(series) == pytest.approx(0, abs=0.15)
        assert statistics.stdev(series) == pytest.approx(1, abs=0.1)
        assert statistics.correlation(series[1:], series[:-1]) == pytest.approx(coefficient, abs=0.06)


def test_spikes_come_as_often_and_as_long_as_asked_and_are_communication():
    base = step_time.ideal(QUIET, 64)
    steps = [step_time.drawn(changed(spike_rate=0.05, spike_factor=3.0), 64, 1, step) for step in range(4000)]
    spiked = [step for step in steps if step.total > 1.5 * base.total]
    assert len(spiked) / 4000 == pytest.approx(0.05, abs=0.012)
    assert spiked[0].total == pytest.approx(3 * base.total)
    assert spiked[0].forward == base.forward


def test_launches_spread_as_asked():
    launches = [
        math.log(step_time.drawn(changed(launch_sd=0.02), 64, attempt, 1).total / step_time.ideal(QUIET, 64).total)
        for attempt in range(500)
    ]
    assert statistics.stdev(launches) == pytest.approx(0.02, rel=0.15)


def test_it_needs_no_torch():
    code = "import sys, training.step_time, training.manifest, training.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
