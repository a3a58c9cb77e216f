"""Reading metrics.jsonl: duplicates, torn lines, foreign trainers, and errors that name the line."""

import json
import math
import time

import pytest

from tasks.errors import RecordsInvalid
from tasks.records import STEP_COLUMNS, follow, read_metrics


def step(number, loss=1.0, **more):
    return {"kind": "step", "step": number, "tokens": number * 8, "loss": loss, "step_seconds": 0.5, **more}


def write(path, *records, tail=""):
    path.write_text("".join(json.dumps(r) + "\n" for r in records) + tail)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_no_file_is_no_rows(path):
    metrics = read_metrics(path)
    assert (len(metrics.steps), metrics.attempts, metrics.torn) == (0, 0, 0)
    assert tuple(metrics.steps.columns) == STEP_COLUMNS
    assert follow(path, 0) == ([], 0)


def test_last_attempt_of_a_step_wins(path):
    write(
        path,
        {"kind": "header", "fields": {"loss": "real"}},
        step(1, 3.0, attempt=1), step(2, 2.0, attempt=1), step(3, 1.5, attempt=1),
        {"kind": "header", "fields": {"loss": "real"}, "host": "b"},
        step(3, 1.25, attempt=2), step(4, 1.0, attempt=2),
    )  # fmt: skip
    metrics = read_metrics(path)
    assert metrics.steps["step"].tolist() == [1, 2, 3, 4]
    assert metrics.steps["loss"].tolist() == [3.0, 2.0, 1.25, 1.0]
    assert metrics.steps["attempt"].tolist() == [1, 1, 2, 2]
    assert metrics.attempts == 2
    assert metrics.header["host"] == "b"


def test_an_older_attempt_that_writes_late_does_not_win(path):
    write(path, step(1, 3.0, attempt=2), step(1, 9.0, attempt=1))
    assert read_metrics(path).steps["loss"].tolist() == [3.0]


def test_a_restart_within_one_attempt_counts_by_order(path):
    write(path, step(1, 3.0, attempt=1), step(1, 2.0, attempt=1))
    assert read_metrics(path).steps["loss"].tolist() == [2.0]


def test_a_replayed_step_and_a_trained_one_are_two_rows(path):
    write(path, step(5, 1.0, phase="replay"), step(5, 2.0, phase="train"), step(5, 1.5, phase="replay"))
    steps = read_metrics(path).steps
    assert sorted(zip(steps["phase"], steps["loss"], strict=True)) == [("replay", 1.5), ("train", 2.0)]


def test_a_torn_last_line_is_counted_and_not_read(path):
    write(path, step(1), tail='{"kind": "step", "step": 2, "tok')
    metrics = read_metrics(path)
    assert metrics.steps["step"].tolist() == [1]
    assert metrics.torn == 1


def test_a_line_torn_by_a_death_before_a_new_attempt_is_counted(path):
    path.write_text(json.dumps(step(1)) + '\n{"kind": "st\n' + json.dumps({"kind": "header"}) + "\n")
    metrics = read_metrics(path)
    assert (len(metrics.steps), metrics.torn) == (1, 1)


def test_bad_json_in_the_middle_names_its_line(path):
    path.write_text(json.dumps(step(1)) + "\n{oops}\n" + json.dumps(step(2)) + "\n")
    with pytest.raises(RecordsInvalid, match=r"metrics\.jsonl line 2 is not a JSON object: '\{oops\}'"):
        read_metrics(path)


def test_a_line_that_is_no_object_names_its_line(path):
    path.write_text("[1, 2]\n" + json.dumps(step(2)) + "\n")
    with pytest.raises(RecordsInvalid, match=r"line 1 is not a JSON object"):
        read_metrics(path)


@pytest.mark.parametrize("name", ["step", "tokens", "loss", "step_seconds"])
def test_a_missing_required_field_is_named_with_its_line(path, name):
    bad = step(2)
    del bad[name]
    write(path, step(1), bad)
    with pytest.raises(RecordsInvalid, match=rf"line 2 has no '{name}'; a step record needs step, tokens, loss"):
        read_metrics(path)


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("step", 1.5, "a whole number"),
        ("step", "1", "a whole number"),
        ("loss", "low", "a number"),
        ("loss", True, "a number"),
    ],
)
def test_a_required_field_of_the_wrong_type_is_named(path, name, value, right):
    write(path, step(1) | {name: value})
    with pytest.raises(RecordsInvalid, match=f"line 1: {name} is {value!r}; it must be {right}"):
        read_metrics(path)


def test_a_foreign_line_without_kind_is_a_step_and_unknown_fields_stay(path):
    write(path, {"step": 1, "tokens": 8, "loss": None, "step_seconds": 0.5, "router_entropy": 0.25, "note": "x"})
    steps = read_metrics(path).steps
    row = steps.iloc[0]
    assert row["phase"] == "train"
    assert math.isnan(row["loss"])
    assert row["router_entropy"] == 0.25
    assert row["note"] == "x"
    assert math.isnan(row["grad_norm"])
    assert steps["step"].dtype == "int64"


def test_nan_of_a_diverged_loss_is_kept_for_the_gates(path):
    path.write_text('{"step": 1, "tokens": 8, "loss": NaN, "step_seconds": 0.5}\n')
    assert math.isnan(read_metrics(path).steps["loss"][0])


def test_held_out_and_checkpoints_have_their_own_frames(path):
    write(
        path,
        {"kind": "held_out", "step": 0, "tokens": 0, "loss": 5.5, "at": "start"},
        step(1),
        {"kind": "checkpoint", "step": 1, "path": "checkpoints/step_00000001", "purpose": "final", "bytes": 10},
        {"kind": "held_out", "step": 0, "tokens": 0, "loss": 5.25, "at": "start"},
    )
    metrics = read_metrics(path)
    assert metrics.held_out[["step", "loss", "at"]].values.tolist() == [[0, 5.25, "start"]]
    assert metrics.checkpoints["purpose"].tolist() == ["final"]


def test_follow_returns_each_whole_line_once(path):
    write(path, step(1), tail='{"kind": "step"')
    found, offset = follow(path, 0)
    assert [r["step"] for r in found] == [1]
    assert follow(path, offset) == ([], offset)
    write(path, step(1), step(2))
    found, offset = follow(path, offset)
    assert [r["step"] for r in found] == [2]
    assert offset == path.stat().st_size


def test_follow_holds_a_torn_line_back_until_a_header_explains_it(path):
    path.write_text(json.dumps(step(1)) + "\n{torn\n")
    found, offset = follow(path, 0)
    assert len(found) == 1
    with path.open("a") as file:
        file.write(json.dumps({"kind": "header"}) + "\n" + json.dumps(step(2)) + "\n")
    found, offset = follow(path, offset)
    assert [r.get("kind") for r in found] == ["header", "step"]
    assert offset == path.stat().st_size


def test_follow_names_a_broken_line_that_no_header_explains(path):
    path.write_text("{broken\n" + json.dumps(step(2)) + "\n")
    with pytest.raises(RecordsInvalid, match="line 1 is not a JSON object"):
        follow(path, 0)


def test_rows_of_different_fields_make_one_frame_however_many_there_are(path):
    """Fields come and go in the course of a long file, and not all of them are numbers."""
    rows = [step(n, n / 7) for n in range(1, 3001)]
    for n, row in enumerate(rows):
        if n % 3 == 0:
            row["grad_norm"] = n / 2
        if n > 2500:
            row["router"] = f"expert {n}"
        if n == 2000:
            row |= {"grad_norm": "0.5", "memory_gib": "plenty", "batch": None}
    steps = read_metrics(write(path, *rows)).steps
    assert steps["step"].tolist() == list(range(1, 3001))
    assert steps["loss"].tolist() == [row["loss"] for row in rows]
    known = [float(row["grad_norm"]) if "grad_norm" in row else math.nan for row in rows]
    assert steps["grad_norm"].tolist() == pytest.approx(known, nan_ok=True)
    assert steps["router"].isna().sum() == 2501
    assert steps["router"].iloc[-1] == "expert 2999"
    assert steps["memory_gib"].isna().all()
    assert list(steps.columns) == [*STEP_COLUMNS, "router"]
    assert {str(steps[name].dtype) for name in ("step", "attempt", "tokens")} == {"int64"}
    assert {str(steps[name].dtype) for name in ("loss", "grad_norm", "memory_gib", "batch")} == {"float64"}


@pytest.mark.parametrize(
    ("name", "text"),
    [("step", "NaN"), ("step", "1e300"), ("tokens", "Infinity"), ("step", "-1e400"), ("attempt", "null"),
     ("attempt", "1.5"), ("tokens", "9223372036854775807")],
)  # fmt: skip
def test_what_counts_nothing_is_named_and_breaks_nothing(path, name, text):
    fields = {"step": "1", "tokens": "8", "loss": "1.0", "step_seconds": "0.5", name: text}
    path.write_text("{" + ", ".join(f'"{key}": {value}' for key, value in fields.items()) + "}\n")
    with pytest.raises(RecordsInvalid, match=rf"line 1: {name} is .*; it must be a whole number"):
        read_metrics(path)


def test_a_number_beyond_all_floats_is_infinite(path):
    path.write_text(
        f'{{"step": 1, "tokens": 8, "loss": {10**400}, "step_seconds": 0.5, "batch": {-(10**400)}, "time": 1e400}}\n'
    )
    steps = read_metrics(path).steps
    assert steps[["loss", "batch", "time"]].values.tolist() == [[math.inf, -math.inf, math.inf]]


def test_what_the_standard_library_reads_is_read(path):
    lines = ['\ufeff{"step": 1, "tokens": 8, "loss": 1.0, "step_seconds": 0.5}', json.dumps(step(2, note="\ud800")), ""]
    path.write_text("\n".join(lines))
    assert read_metrics(path).steps["step"].tolist() == [1, 2]


def test_nesting_without_end_is_no_object_and_no_crash(path):
    path.write_text('{"a":' * 100_000 + "\n" + json.dumps(step(2)) + "\n")
    with pytest.raises(RecordsInvalid, match="line 1 is not a JSON object"):
        read_metrics(path)


def test_a_broken_line_goes_before_an_unfinished_one(path):
    path.write_text(json.dumps(step(1)) + '\n{oops\n{"kind": "st')
    with pytest.raises(RecordsInvalid, match=r"line 2 is not a JSON object: '\{oops'"):
        read_metrics(path)


def test_a_look_costs_what_its_new_records_cost_however_long_the_file(path):
    few, many = path.with_name("few.jsonl"), path.with_name("many.jsonl")
    offsets = {}
    for file, count in ((few, 2_000), (many, 100_000)):
        write(file, *(step(n) for n in range(count - 1_000)))
        offsets[file] = follow(file, 0)[1]
        with file.open("a") as more:
            more.writelines(json.dumps(step(n)) + "\n" for n in range(count - 1_000, count))

    def seconds(file):
        began = time.process_time()
        assert len(follow(file, offsets[file])[0]) == 1_000
        return time.process_time() - began

    assert min(seconds(many) for _ in range(9)) <= 2 * min(seconds(few) for _ in range(9))


def test_ten_times_the_records_cost_at_most_twelve_times_the_time(path):
    few, many = path.with_name("few.jsonl"), path.with_name("many.jsonl")
    for file, count in ((few, 10_000), (many, 100_000)):
        write(file, {"kind": "header"}, *(step(n, grad_norm=1.0, memory_gib=2.0) for n in range(count)))

    def seconds(file):
        began = time.process_time()
        read_metrics(file)
        return time.process_time() - began

    seconds(few)
    rounds = ((seconds(many), min(seconds(few) for _ in range(2))) for _ in range(5))  # side by side: machines drift
    assert any(ten_times <= 12 * once for ten_times, once in rounds)
