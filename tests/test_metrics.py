"""``metrics.jsonl``: whole lines, standard JSON, and of each field what kind of number it is."""

import json
import math

from trained import EMULATION, SHAPE, span

from training.config import OPTIONAL, REQUIRED, TrainConfig
from training.metrics import Records, natures, step_record

CONFIG = TrainConfig("small", "run", "gpus_8", 1, 8, 0, SHAPE, 16, (span(1, 5, 8),), emulation=EMULATION)
SECONDS = {"wall": 0.5, "data": 0.01, "forward": 0.1, "backward": 0.2, "communication": 0.05, "optimizer": 0.02}


def test_a_line_torn_by_a_death_is_cut_before_the_next_attempt_writes(tmp_path):
    path = tmp_path / "stage" / "metrics.jsonl"
    first = Records(path, attempt=1)
    first.write("step", {"step": 1})
    first.close()
    with path.open("a") as file:
        file.write('{"kind": "step", "st')
    second = Records(path, attempt=2)
    second.write("header", {})
    second.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["kind"], line["attempt"]) for line in lines] == [("step", 1), ("header", 2)]


def test_what_json_does_not_have_becomes_null(tmp_path):
    records = Records(tmp_path / "metrics.jsonl", attempt=1)
    records.write("step", {"loss": math.nan, "grad_norm": math.inf, "step": 3})
    records.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=lambda name: name)
    assert (line["loss"], line["grad_norm"], line["step"]) == (None, None, 3)


def test_every_field_of_the_contract_has_its_nature():
    for emulated in (True, False):
        assert set(natures(emulated)) >= {*REQUIRED, *OPTIONAL} - {"attempt"}
    assert natures(True)["step_seconds"] == natures(True)["tokens_per_gpu_second"] == "modelled"
    assert "modelled" not in natures(False).values()
    assert natures(True)["loss"] == "real"


def test_an_emulated_step_has_the_recipes_time_and_speed_and_this_machines_wall_time():
    record = step_record(CONFIG, 3, 8, SECONDS, attempt=1)
    assert record["wall_seconds"] == 0.5
    assert record["tokens_per_gpu_second"] * record["step_seconds"] * 8 == 64 * 4096
    assert record["step_seconds"] > 1
    parts = ("data", "forward", "backward", "communication", "optimizer")
    assert math.isclose(sum(record[f"{part}_seconds"] for part in parts), record["step_seconds"])


def test_a_real_step_has_its_own():
    real = TrainConfig("small", "run", "gpus_8", 1, 8, 0, SHAPE, 16, (span(1, 5, 8),))
    record = step_record(real, 3, 8, SECONDS, attempt=1)
    assert record["step_seconds"] == record["wall_seconds"] == 0.5
    assert record["forward_seconds"] == 0.1
    assert record["tokens_per_gpu_second"] == 8 * 16 / 8 / 0.5
    assert 0.01 < record["memory_gib"] < 64
