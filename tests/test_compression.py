"""Gradients in 1, 2 or 4 bits: what is lost comes later, copies stay equal, an overflow reaches everybody."""

import os
import subprocess
import sys
from pathlib import Path

import compressed_sums
import pytest
import torch
from compressed_sums import ELEMENTS, PROCESSES, STEPS, gradient
from trained import order, records, run, span, steps, tensors

from training.compression import BLOCK, Codec, CompressedSum
from training.config import Checkpointing, Compression, Layout, Start

BITS = [1, 2, 4]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What four gloo processes saw."""
    folder = tmp_path_factory.mktemp("sums")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    command = [sys.executable, compressed_sums.__file__, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(PROCESSES)]


def coded(values: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the codes stand for, and what they lose."""
    codec, lost = Codec(bits), values.clone()
    payload = torch.empty(len(values), codec.block_bytes, dtype=torch.uint8)
    codec.encode(lost, payload)
    return codec.decode(payload), lost


@pytest.mark.parametrize("bits", BITS)
def test_what_codes_stand_for_and_what_they_lose_is_the_block(bits):
    values = torch.randn(1000, BLOCK, generator=torch.Generator().manual_seed(1))
    decoded, lost = coded(values, bits)
    torch.testing.assert_close(decoded + lost, values, rtol=0, atol=1e-6)
    # Max 1960, table II: the distortion of the best uniform quantiser of a unit Gaussian.
    assert float(lost.square().mean()) == pytest.approx({1: 0.3634, 2: 0.1188, 4: 0.01154}[bits], rel=0.05)
    assert len(decoded.unique()) > 100, "every block has a scale of its own"
    assert all(len(block.unique()) <= 2**bits for block in decoded[:50])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", ["spike", "two_spikes", "one_sign", "cauchy", "tiny", "huge"])
def test_the_error_is_shorter_than_the_block_whatever_it_holds(bits, shape):
    generator = torch.Generator().manual_seed(2)
    values = torch.zeros(8, BLOCK)
    if shape == "spike":
        values[:, 17] = 3.0
    elif shape == "two_spikes":
        values[:, 5], values[:, 200] = -7.0, 1e-3
    elif shape == "one_sign":
        values.uniform_(1.0, 2.0, generator=generator)
    elif shape == "cauchy":
        values.cauchy_(generator=generator)
    else:
        values.normal_(generator=generator).mul_({"tiny": 1e-30, "huge": 1e17}[shape])
    _, lost = coded(values, bits)
    assert (
        torch.linalg.vector_norm(lost.double(), dim=1) < 0.999 * torch.linalg.vector_norm(values.double(), dim=1)
    ).all()


@pytest.mark.parametrize("bits", BITS)
def test_nothing_is_coded_as_nothing(bits):
    decoded, lost = coded(torch.zeros(3, BLOCK), bits)
    assert not decoded.any()
    assert not lost.any()


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("bits", BITS)
def test_a_number_that_is_not_finite_spoils_its_block_alone_and_no_error(bits, bad):
    values = torch.randn(3, BLOCK, generator=torch.Generator().manual_seed(3))
    values[1, 100] = bad
    decoded, lost = coded(values, bits)
    assert not decoded[1].isfinite().any()
    assert decoded[[0, 2]].isfinite().all()
    assert not lost[1].any()
    assert lost[[0, 2]].any()


@pytest.mark.parametrize("bits", BITS)
def test_every_process_has_the_same_sum_bit_for_bit(ranks, bits):
    for step in range(STEPS):
        assert all(torch.equal(rank[f"sums_{bits}"][step], ranks[0][f"sums_{bits}"][step]) for rank in ranks)


@pytest.mark.parametrize("bits", BITS)
def test_all_that_was_not_sent_lies_in_the_errors(ranks, bits):
    """Sums so far + errors of all = true sums so far: error feedback, as an identity."""
    true = sum(gradient(rank, step).double() for rank in range(PROCESSES) for step in range(STEPS))
    sent = sum(found.double() for found in ranks[0][f"sums_{bits}"])
    kept = torch.zeros(4 * PROCESSES * BLOCK, dtype=torch.float64)
    for number, rank in enumerate(ranks):
        errors = rank[f"errors_{bits}"]
        kept += errors[f"rank_{number}_of_4.all.worker"].flatten().double()
    kept += torch.cat(
        [r[f"errors_{bits}"][f"rank_{n}_of_4.all.server"].flatten() for n, r in enumerate(ranks)]
    ).double()
    size = torch.logspace(-6, 2, ELEMENTS)
    torch.testing.assert_close((sent + kept[:ELEMENTS]) / size, true / size, rtol=1e-5, atol=2e-2)
    assert kept[:ELEMENTS].abs().max() > 1.0, "and something was kept"


@pytest.mark.parametrize(("bits", "cut"), [(1, 0.966), (2, 0.935), (4, 0.873)])
def test_the_bytes_handed_to_the_process_group_are_cut(ranks, bits, cut):
    ring = 2 * (PROCESSES - 1) / PROCESSES * 4 * (4 * PROCESSES * BLOCK)  # of float32, the padding included
    for rank in ranks:
        counted = rank[f"bytes_{bits}"]
        assert counted["counted"] == counted["said"] > 0
        assert 1 - counted["counted"] / STEPS / ring == pytest.approx(cut, abs=1e-3)
        assert rank[f"seconds_{bits}"] > 0


def test_it_goes_on_from_its_state_bit_for_bit(ranks):
    for rank in ranks:
        assert rank["resumed"]["kept"]
        assert all(map(torch.equal, rank["resumed"]["sums"], rank["sums_2"]))


def test_an_overflow_in_one_process_is_seen_by_all_and_forgotten(ranks):
    for rank in ranks:
        found = rank["overflow"]
        assert not found["sum"][[300, 1000]].isfinite().any()
        assert found["sum"][[0, 600, -1]].isfinite().all(), "other blocks are sound"
        assert all(error.isfinite().all() for error in found["errors"])
        assert found["next"][0].isfinite().all()


def test_a_group_sums_over_itself_alone(ranks):
    assert [float(rank["pairs"][0]) for rank in ranks] == pytest.approx([4, 6, 4, 6], rel=0.01)


@pytest.mark.parametrize(("layout", "replicas"), [("copies", [[0, 1, 2, 3]]), ("shards", [[0, 2], [1, 3]])])
def test_copies_of_the_weights_stay_equal_bit_for_bit(ranks, layout, replicas):
    for group in replicas:
        first = ranks[group[0]][layout]["held"]
        assert all(torch.equal(ranks[rank][layout]["held"][name], first[name]) for rank in group for name in first)
    losses = ranks[0][layout]["losses"]
    assert losses[-1] < losses[0] - 0.2, "and they learn"
    assert ranks[0][layout]["bytes"] > 0


def test_a_bucket_holds_the_same_elements_from_the_first_step(ranks):
    """DDP forms its buckets anew after a first pass; were that a step, errors would belong to other elements then."""
    for rank in ranks:
        errors = [name for name in rank["copies"]["errors"] if name.endswith("worker")]
        assert [name.rpartition(".bucket_")[2] for name in errors] == ["0.worker"]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Jobs of the trainer: left alone; killed and gone on; in shards, killed and gone on; after another layout."""
    root = tmp_path_factory.mktemp("jobs")
    settings = {"processes": None, "emulation": None, "gpus": 4, "compression": Compression(2)}
    settings["checkpointing"] = Checkpointing(every_steps=6, keep=2)
    for name, layout in (("alone", Layout()), ("killed", Layout()), ("sharded", Layout(shard=2))):
        order(root / name, span(1, 12, 9), layout=layout, **settings)
    order(root / "sharded_killed", span(1, 12, 9), layout=Layout(shard=2), **settings)
    killed = ("killed", "sharded_killed")
    ends = run(
        *[root / n for n in ("alone", "sharded")], *[s for n in killed for s in ((root / n, "step:9"), root / n)]
    )
    assert [end["code"] for end in ends] == [0, 0, -9, 0, -9, 0], ends[0]["said"]
    hand_over = Start("continue", str(root / "alone/checkpoints/step_00000012"), 12)
    order(root / "next", span(13, 2, 9), start=hand_over, **(settings | {"gpus": 2}))
    (end,) = run(root / "next")
    assert end["code"] == 0, end["said"]
    return root


@pytest.mark.parametrize(("alone", "killed"), [("alone", "killed"), ("sharded", "sharded_killed")])
def test_a_killed_job_goes_on_with_its_errors_bit_for_bit(jobs, alone, killed):
    wanted, found = steps(jobs / alone), steps(jobs / killed)
    assert [record["loss"] for record in found.values()] == [record["loss"] for record in wanted.values()]
    ends = [tensors(jobs / name / "checkpoints/step_00000012") for name in (alone, killed)]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    errors = [name for name in ends[0] if name.startswith("compression.")]
    assert {name.partition(".rank_")[2].partition("_of")[0] for name in errors} == {"0", "1", "2", "3"}
    assert [header["compression"]["errors"] for header in records(jobs / killed, "header")] == ["new", "kept"]


def test_each_step_says_what_its_codes_cost(jobs):
    for record in steps(jobs / "alone").values():
        assert 0 < record["codec_seconds"] < record["step_seconds"]
        assert record["compressed_bytes"] > 0
    (header,) = records(jobs / "alone", "header")
    assert header["compression"]["bits"] == 2
    assert header["fields"]["codec_seconds"] == header["fields"]["compressed_bytes"] == "measured"


def test_a_world_of_another_size_begins_without_errors_and_says_so(jobs):
    (header,) = records(jobs / "next", "header")
    assert header["compression"] == {"bits": 2, "errors": "reset: another layout wrote the checkpoint"}
    assert steps(jobs / "next")[14]["loss"] < steps(jobs / "alone")[1]["loss"]


def test_errors_follow_the_factor_that_gradients_carry():
    summed = CompressedSum(Compression(2), "here")
    summed.expect({"here.factor": (), "here.all.worker": (4, BLOCK), "here.all.server": (1, BLOCK)})
    for tensor in summed.state().values():
        tensor.fill_(2.0)
    summed.rescale(8.0)
    state = summed.state()
    assert [float(state[f"here.all.{side}"].mean()) for side in ("worker", "server")] == [8.0, 8.0]
    summed.rescale(8.0)
    assert float(summed.state()["here.factor"]) == 8.0
    assert float(summed.state()["here.all.worker"].mean()) == 8.0
