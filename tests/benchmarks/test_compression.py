"""Compressed gradients against plain ones: bytes on the wire, losses after 500 steps, what the codec costs and saves.

Losses are those of the trainer itself, four forked gloo processes a run, each seed compressed and not: same weights,
same samples, so the difference is what the codes did.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import compressed_wire
import numpy as np
import pytest
import torch
from compressed_wire import ELEMENTS, PROCESSES
from rates import table
from scipy.stats import t
from trained import order, records, run, steps

from training.compression import Codec
from training.config import Compression, HeldOut, Layout, ModelShape, Schedule, Span

pytestmark = pytest.mark.timeout(3600)

SEEDS = (1, 2, 3, 4, 5)
STEPS, BATCH, LENGTH = 500, 32, 32
SHAPE = ModelShape(layers=2, hidden=48, heads=2, ffn=96, vocabulary=256)
SPAN = Span("train", 1, STEPS, BATCH, 4e-3, Schedule("cosine", 0, 30, STEPS))
MEGA = ModelShape(layers=4, hidden=128, heads=4, ffn=344, vocabulary=256)  # 0.8 M parameters
RING = 2 * (PROCESSES - 1) / PROCESSES * 4  # bytes that a process sends for an element in a float32 ring all-reduce
SCALES = "codes of 256 elements and their bf16 scale"


def trained_with(root: Path, bits: int | None, seed: int) -> Path:
    """Orders of one training."""
    settings = {"data": "stdlib", "model": SHAPE, "sequence_length": LENGTH, "held_out": HeldOut(1024, None)}
    compression = Compression(bits) if bits else None  # type: ignore[arg-type]
    real = {"processes": None, "emulation": None, "gpus": PROCESSES, "compression": compression}
    return order(root / f"bits_{bits}_seed_{seed}", SPAN, seed=seed, **settings, **real)


def test_losses_with_and_without_after_500_steps(tmp_path):
    ways = {None: SEEDS, 2: SEEDS, 1: SEEDS, 4: SEEDS}
    folders = {(bits, seed): trained_with(tmp_path, bits, seed) for bits, seeds in ways.items() for seed in seeds}
    ends = run(*folders.values(), timeout=3600)
    assert [end["code"] for end in ends] == [0] * len(ends), ends[0]["said"]
    held_out = {key: records(folder, "held_out")[-1]["loss"] for key, folder in folders.items()}
    last = {key: np.mean([steps(f)[n]["loss"] for n in range(STEPS - 49, STEPS + 1)]) for key, f in folders.items()}
    rows, means = [], {}
    for bits, seeds in ways.items():
        row = [
            f"{bits} bits, error feedback" if bits else "float32",
            f"{np.mean([held_out[bits, s] for s in seeds]):.4f}",
        ]
        for losses in (held_out, last):
            differences = np.array([losses[bits, seed] - losses[None, seed] for seed in seeds])
            half = t.ppf(0.975, len(seeds) - 1) * differences.std(ddof=1) / math.sqrt(len(seeds))
            row.append("" if bits is None else f"{differences.mean():+.4f} ± {half:.4f}")
            means.setdefault(bits, []).append(abs(differences.mean()))
        rows.append(row)
    print(
        f"\n{STEPS} steps of {BATCH} x {LENGTH} tokens, {SHAPE.parameters} parameters, {len(SEEDS)} seeds, nats a token"
    )
    print(table(["gradients", "held-out loss", "paired difference, held out", "paired, last 50 steps"], rows))
    assert max(means[2]) < 0.01


def test_bytes_on_the_wire_and_the_link_at_which_codes_pay():
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, compressed_wire.__file__], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stderr.splitlines()[-1])
    plain, rows = said["None"]["wire"], []
    for bits in ("None", "1", "2", "4"):
        found = said[bits]
        row = [bits if bits != "None" else "float32", f"{found['said'] / 1e6:.3f}", f"{found['wire'] / 1e6:.3f}"]
        if bits != "None":
            seconds = codec_seconds(int(bits))
            gbits = 8 * (said["None"]["said"] - found["said"]) / seconds / 1e9
            cuts = [f"{1 - found[key] / said['None'][key]:.2%}" for key in ("said", "wire")]
            row += [*cuts, f"{1e9 * seconds / ELEMENTS:.2f}", f"{gbits:.1f}"]
        rows.append([*row, "", "", "", ""][:7])
    where = "in a network of its own" if said["alone"] else "which others may have used as well"
    print(f"\n{ELEMENTS} elements over {PROCESSES} gloo processes; bytes a process; loopback {where}")
    heads = [
        "",
        "MB to the group",
        "MB on loopback",
        "cut",
        "cut on loopback",
        "codec ns an element",
        "pays below Gbit/s",
    ]
    print(table(heads, rows))
    print("Codec: CPU seconds of one thread, the least of five. What it hides behind the backward pass is not counted.")
    assert 1 - said["2"]["said"] / said["None"]["said"] > 0.9
    if said["alone"]:
        assert 1 - said["2"]["wire"] / plain > 0.9


def codec_seconds(bits: int) -> float:
    """CPU seconds that one process of four spends on a vector: encode, sum the parts, encode the sum, decode it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    codec, blocks = Codec(bits), ELEMENTS // 256
    values = torch.randn(blocks, 256)
    payload = torch.empty(blocks, codec.block_bytes, dtype=torch.uint8)

    def work() -> None:
        codec.encode(values, payload)
        codec.encode(values[: blocks // PROCESSES], payload[: blocks // PROCESSES])
        for _ in range(2):
            for part in torch.split(payload, 2048):
                codec.decode(part)

    found = min(spent(work) for _ in range(5))
    torch.set_num_threads(threads)
    return found


def spent(work: Callable[[], None]) -> float:
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def test_of_shards_the_traffic_between_replicas_is_cut(tmp_path):
    """HSDP, 2 replicas of 2 shards: gathers and scatters inside a replica stay as they are, and are not counted."""
    span = Span("train", 1, 3, 8, 1e-3, Schedule("constant", 0, 0, 3))
    real = {"processes": None, "emulation": None, "gpus": 4, "compression": Compression(2), "layout": Layout(shard=2)}
    folder = order(tmp_path / "hsdp", span, model=MEGA, sequence_length=64, **real)
    (end,) = run(folder)
    assert end["code"] == 0, end["said"]
    sent = steps(folder)[3]["compressed_bytes"]
    plain = 2 * (2 - 1) / 2 * 4 * MEGA.parameters / 2  # of the shard that a process holds, over 2 replicas
    print(f"\nHSDP 2 x 2, {MEGA.parameters} parameters: {sent} bytes between replicas, float32 {plain:.0f}: "
          f"{1 - sent / plain:.2%} less")  # fmt: skip
    assert 1 - sent / plain > 0.9
