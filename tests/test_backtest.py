"""``scaleup backtest``: what it reads, what it refuses in one sentence, what it says of tables whose truth is known."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.backtest import OURS, TableInvalid, backtest, read_table
from tasks.backtest.rivals import constant, power_law, usl
from tasks.backtest.score import foretell, score
from tasks.backtest.seen import TAUGHT, fingerprint, seen
from tasks.backtest.table import Series
from tasks.cli import main
from tasks.statistics import PUBLISHED

PUBLIC = Path(__file__).parent / "data" / "published_scaling.csv"
HEAD = "series_id,model,gpus,tokens_per_s_per_gpu\n"
GOOD = HEAD + "a,m,8,100\na,m,16,99\na,m,64,98\n"


@pytest.fixture
def written(tmp_path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "history.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_published_series_are_36_weak_ones_of_16_families():
    table = read_table(PUBLIC)
    assert {one.kind for one in table.series} == {"weak"}
    assert (len(table.series), len({one.family for one in table.series})) == (36, 16)
    assert table.left_out == {"fewer than three scales": 141, "batch a GPU neither kept nor divided": 12}
    releases = {one.name for one in table.series if one.family == "llama 3.1 70b"}
    assert len(releases) == 6


def test_the_shipped_prior_knows_whom_it_was_learned_from():
    assert {fingerprint(one) for one in read_table(PUBLIC).series} == TAUGHT
    other = Series("x", "x", "weak", np.array([8.0, 16, 32]), np.array([1.0, 0.9, 0.8]), None)
    assert not seen(other)


def columns(text: str) -> list[Series]:
    path = Path("columns.csv")
    path.write_text(text)
    return read_table(path).series


@pytest.mark.parametrize(
    ("head", "rows"),
    [
        ("tokens_per_s_per_gpu", ["8,100", "16,99", "64,98"]),
        ("tokens_per_s", ["8,800", "16,1584", "64,6272"]),
        ("samples_per_s", ["8,800", "16,1584", "64,6272"]),
        (
            "step_time_s,global_batch_seqs,seq_len",
            ["8,4.096,8,409.6", "16,4.1373737,16,409.6", "64,4.1795918,64,409.6"],
        ),
    ],
)
def test_each_column_of_throughput_says_the_same(tmp_path, monkeypatch, head: str, rows: list[str]):
    monkeypatch.chdir(tmp_path)
    (one,) = columns(f"series_id,gpus,{head}\n" + "\n".join(f"a,{row}" for row in reversed(rows)))
    assert one.gpus.tolist() == [8, 16, 64]
    assert (one.throughput == pytest.approx([100, 99, 98])) and one.kind == "weak"


@pytest.mark.parametrize(
    ("batches", "kind"), [((8, 16, 64), "weak"), ((8, 17, 64), "weak"), ((64, 64, 64), "strong"), ((8, 16, 32), None)]
)
def test_weak_or_strong_follows_from_the_batches(tmp_path, monkeypatch, batches: tuple[int, ...], kind: str | None):
    monkeypatch.chdir(tmp_path)
    rows = zip((8, 16, 64), (100, 99, 98), batches, strict=True)
    text = "series_id,gpus,tokens_per_s_per_gpu,global_batch_seqs\n" + "\n".join(f"a,{g},{y},{b}" for g, y, b in rows)
    if kind is None:
        with pytest.raises(TableInvalid, match="1 with batch a GPU neither kept nor divided"):
            columns(text)
    else:
        assert columns(text)[0].kind == kind


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty; its first line must name the columns"),
        (HEAD, "no series can be backtested: it has no rows"),
        ("gpus,tokens_per_s\n8,1\n", "has no column 'series_id'; its columns are gpus, tokens_per_s"),
        (
            "series_id,gpus\na,8\n",
            "one of tokens_per_s_per_gpu, tokens_per_s, samples_per_s, step_time_s must be there",
        ),
        ("series_id,gpus,gpus,tokens_per_s\n", "the column 'gpus' is there twice"),
        (HEAD + "a,m,8,fast\n", "line 2: tokens_per_s_per_gpu is 'fast', not a number"),
        (HEAD + "a,m,eight,1\n", "line 2: gpus is 'eight', not a number"),
        (HEAD + "a,m,8,1\na,m,16,nan\n", "line 3: tokens_per_s_per_gpu is nan; it must be a positive, finite number"),
        (HEAD + "a,m,8,inf\n", "must be a positive, finite number"),
        (HEAD + "a,m,8,0\n", "must be a positive, finite number"),
        (HEAD + "a,m,8,-3\n", "must be a positive, finite number"),
        (HEAD + "a,m,0,1\n", "line 2: gpus is 0; it must be a positive, finite number"),
        (HEAD + "a,m,8.5,1\n", "line 2: gpus is '8.5'; it must be a whole number"),
        (HEAD + "a,m,,1\n", "line 2: gpus is ''; it must be a whole number"),
        (HEAD + ",m,8,1\n", "line 2: series_id is empty"),
        (HEAD + "a,m,8,1,9\n", "line 2: more cells than the 4 columns"),
        (GOOD + "a,m,16,97\n", "line 5: series 'a' has 16 GPUs twice, first in line 3"),
        (HEAD + "a,m,8,1\na,m,16,\na,m,64,1\n", "line 3: the rows of series 'a' share no column of throughput"),
        (HEAD + "a,m,8,1\na,m,16,1\n", "1 with fewer than three scales; a series needs three scales"),
        (b"series_id,gpus\xff,x\n", "is not UTF-8 text"),
        (HEAD + '"a,m,8,1\n', "is not a CSV table"),
    ],
)
def test_a_mistake_is_one_sentence(written, capsys, text: str | bytes, sentence: str):
    assert main(["backtest", str(written(text))]) == 1
    said = capsys.readouterr().err
    assert sentence in said
    assert said.startswith("scaleup backtest: ") and said.count("\n") == 1


def test_a_missing_file_and_a_folder_are_one_sentence(tmp_path, capsys):
    assert main(["backtest", str(tmp_path / "absent.csv")]) == 1
    assert "absent.csv cannot be read: No such file or directory" in capsys.readouterr().err
    assert main(["backtest", str(tmp_path)]) == 1
    assert "Is a directory" in capsys.readouterr().err


def test_a_line_law_is_found_by_all_and_a_constant_misses_it():
    gpus = np.array([8.0, 16, 512])
    y = 100 * 2.0 ** (-0.01 * np.log2(gpus) / math.log(2))
    (found,) = foretell([Series("a", "a", "weak", gpus, y, None)], {"a": PUBLISHED}, "two_smallest")
    assert found.error["power_law"] == pytest.approx(0, abs=1e-9)
    assert found.error["constant"] == pytest.approx(-0.05)
    assert abs(found.error[OURS]) < 0.05 and found.covered(OURS)
    assert found.off("constant") == pytest.approx(math.exp(0.05) - 1)


def test_rivals_find_their_own_laws():
    gpus = np.array([8.0, 16, 32, 64])
    law = 50 / (1 + 1e-3 * (gpus - 1) + 1e-6 * gpus * (gpus - 1))
    expected = 50 / (1 + 1e-3 * 999 + 1e-6 * 1000 * 999)
    assert math.exp(usl(gpus, law, 1000)) == pytest.approx(expected, rel=1e-6)
    assert math.exp(usl(gpus[:2], 50 / (1 + 1e-3 * (gpus[:2] - 1)), 1000)) == pytest.approx(50 / 1.999, rel=1e-6)
    assert math.exp(power_law(gpus, 3 * gpus**-0.1, 1000)) == pytest.approx(3 * 1000**-0.1)
    assert math.exp(constant(gpus[::-1], law[::-1], 1000)) == pytest.approx(law[-1])


def test_strong_scaling_is_told_from_work_and_overhead():
    gpus = np.array([8.0, 16, 64])
    batch = 512 / gpus
    series = Series("a", "a", "strong", gpus, batch / (0.01 * batch + 0.2), batch)
    (found,) = foretell([series], {}, "two_smallest")
    assert found.error[OURS] == pytest.approx(0, abs=1e-9)
    assert found.covered(OURS) and abs(found.error["power_law"]) > 0.05


def test_a_refusal_is_decided_by_the_fitted_rows_alone():
    gpus = np.array([8.0, 16, 64])
    rows = [np.array([100, 106, last]) for last in (50.0, 106.0, 300.0)]
    found = foretell([Series("a", "a", "weak", gpus, y, None) for y in rows], {"a": PUBLISHED}, "two_smallest")
    assert all("a GPU did x1.06 among more GPUs" in one.refused for one in found)
    assert score(found, OURS) is None
    late = Series("a", "a", "weak", gpus, np.array([100, 99, 300.0]), None)
    assert not foretell([late], {"a": PUBLISHED}, "two_smallest")[0].refused


def test_scores_by_hand():
    gpus = np.array([8.0, 16, 32])
    series = [Series(f, f, "weak", gpus, np.array([1, 1, y]), None) for f, y in (("a", 1), ("b", 0.5), ("c", 0.8))]
    found = score(foretell(series, dict.fromkeys("abc", PUBLISHED), "two_smallest"), "constant")
    assert found is not None and found.coverage is None
    assert (found.n, found.median) == (3, pytest.approx(0.25))
    assert found.p90 == pytest.approx(np.quantile([0, 1, 0.25], 0.9))
    assert found.interval["median"][0] <= 0.25 <= found.interval["median"][1]


def test_json_has_what_the_terminal_says(written, capsys):
    text = GOOD + "b,n,8,100\nb,n,16,120\nb,n,64,118\n"
    assert main(["backtest", str(written(text)), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["prior"], said["taught_the_shipped_prior"], said["families"]) == ("shipped", 0, 2)
    two = said["weak"]["two_smallest"]
    assert (two["series"], two["refused"], two["refusals"][0]["series"]) == (2, 1, "b")
    (forecast,) = two["forecasts"]
    assert forecast["lower_95"] < forecast["foretold"] and forecast["observed"] == 98
    assert two["all_gaps"]["scaleup"]["n"] == 1 and two["gaps_of_8_and_more"] == {}
    assert main(["backtest", str(written(text))]) == 0
    out = capsys.readouterr().out
    assert "refused to foretell: 1 of 2 (50%)" in out and "a, 8, 16 -> 64 GPUs: foretold" in out


def test_a_prior_that_leaves_out_needs_families(written, capsys):
    for option in (["--prior", "left-out"], ["--learn"]):
        assert main(["backtest", str(written(GOOD)), *option]) == 1
        assert "families" in capsys.readouterr().err
    assert main(["backtest", str(written(GOOD)), "--family", "team"]) == 1
    assert "has no column 'team'" in capsys.readouterr().err


def test_series_that_taught_the_shipped_prior_are_not_foretold_by_it(written, capsys):
    """With families enough they get priors learned without them; with few, the reader is told."""
    lines = PUBLIC.read_text().splitlines(keepends=True)
    few = written(lines[0] + "".join(line for line in lines if "llama-3-1-8b-24-09-bf16" in line))
    assert main(["backtest", str(few)]) == 0
    assert "was learned from 1 of these series: their errors flatter it" in capsys.readouterr().out
    families = ("llama-3-1-8b-24-09-bf16", "mistral", "gpt5b", "maxtext-llama3", "nemo-megatron-fp8")
    many = written(lines[0] + "".join(line for line in lines if any(name in line for name in families)))
    told: list[str] = []
    done = backtest(read_table(many), told=lambda what, part: told.append(what))
    assert (done.prior, done.families) == ("left-out", 5)
    assert told[0] == "learning 5 priors, each without one family"


def test_order_of_rows_and_unit_do_not_matter(written):
    rows = [line.split(",") for line in GOOD.splitlines()[1:]]
    other = HEAD + "".join(",".join([*row[:3], str(float(row[3]) * 7)]) + "\n" for row in reversed(rows))
    one, two = (backtest(read_table(written(text))).found["weak"]["two_smallest"][0].error for text in (GOOD, other))
    assert one == pytest.approx(two)


CELL = st.one_of(
    st.sampled_from(
        ["", "8", "16", "64", "1e300", "1e-300", "nan", "-1", "0", "inf", '"', "a", "1000", "12.5", "\x00", "é"]
    ),
    st.integers(1, 10_000).map(str),
    st.floats(1e-6, 1e12).map(repr),
    st.text(max_size=4),
)
NAMES = st.lists(
    st.sampled_from(
        [
            "series_id",
            "gpus",
            "tokens_per_s",
            "tokens_per_s_per_gpu",
            "step_time_s",
            "global_batch_seqs",
            "scaling",
            "model",
        ]
    ),
    max_size=7,
    unique=True,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=NAMES, rows=st.lists(st.lists(CELL, max_size=7), max_size=8), tail=st.binary(max_size=6))
def test_no_table_gives_a_traceback(written, names: list[str], rows: list[list[str]], tail: bytes):
    text = "\n".join([",".join(names), *(",".join(row) for row in rows)])
    judged(written(text.encode("utf-8", "surrogatepass") + tail))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 10**9), st.floats(1e-9, 1e18), st.floats(1e-9, 1e18)),
        min_size=3,
        max_size=6,
        unique_by=lambda row: row[0],
    ),
    scaling=st.sampled_from(["", "weak", "strong"]),
)
def test_any_sane_table_is_answered_in_finite_numbers(written, rows: list[tuple[int, float, float]], scaling: str):
    lines = [f"a,{g},{y!r},{b!r},{scaling}" for g, y, b in rows]
    judged(written("\n".join(["series_id,gpus,tokens_per_s,global_batch_seqs,scaling", *lines])))


def judged(path: Path) -> None:
    try:
        done = backtest(read_table(path))
    except TableInvalid as error:
        assert "\n" not in str(error).replace(repr(str(path)), "")
    else:
        json.dumps(done.as_json(), allow_nan=False)


def test_ten_times_the_series_cost_at_most_twelve_times_the_time(written):
    def seconds(n: int) -> float:
        rows = [f"s{i},m{i % 9},{8 * 2**j},{100 - j + i % 3}" for i in range(n) for j in range(4)]
        path, best = written(HEAD + "\n".join(rows)), math.inf
        for _ in range(2):
            began = time.process_time()
            backtest(read_table(path))
            best = min(best, time.process_time() - began)
        return best

    seconds(10)  # what is loaded once
    rounds = ((seconds(150), seconds(15)) for _ in range(3))  # side by side: machines drift
    assert any(ten_times <= 12 * once for ten_times, once in rounds)
