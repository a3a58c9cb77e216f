"""Reports say what the folders hold, say what they lack, escape everything, and load nothing from outside."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import sample_runs as sample

from tasks.gates.core import Check, Outcome
from tasks.report import pictures, report, report_run, words
from tasks.run import open_run
from tasks.stage_dir import RunDir, write_json


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run of the shipped experiment, opened once, since that digests the whole environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCALEUP_HOME", str(tmp_path_factory.mktemp("home")))
        origin = {"dag_id": "scale_up_gpt_stdlib", "dag_run_id": "manual__1"}
        return open_run("gpt_stdlib", run_id="20261201_030000", note="a <b>note</b> | more", origin=origin)


@pytest.fixture
def run(opened: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setenv("SCALEUP_AIRFLOW_URL", "http://127.0.0.1:8080")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    own = RunDir(tmp_path / "runs" / opened.experiment / opened.run_id)
    shutil.copytree(opened.path, own.path)
    return own


class Page(HTMLParser):
    """Words, addresses and tags of a page; a tag that is never closed is an error."""

    VOID = frozenset({"meta", "br", "img", "link", "hr", "input"})

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.feed(path.read_text())
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def test_a_failed_stage_says_what_how_much_how_sure_and_what_then(run: RunDir) -> None:
    for name in sample.GPUS:
        stage = sample.finished_stage(run, name, failed=name == "gpus_1000")
    page = Page(report(stage))
    assert "gpus_1000 failed: scaling_efficiency" in page.words
    assert "78.0% against a limit of 90.0%: 12.0 points off" in page.words
    assert "interval 77.0% to 79.0%, wholly on one side of the limit: sure; n = 70" in page.words
    assert "see where a step's time goes <communication first>" in page.words
    assert 'scaleup promote gpt_stdlib/20261201_030000 gpus_1000 --because "..."' in page.words
    assert "rehearsal on emulated GPUs" in page.words
    assert page.words.index("scaling_efficiency failed") < page.words.index("finite_loss passed")
    assert "modelled step_seconds, tokens_per_gpu_second" in page.words
    assert "Not promoted." in page.words
    assert "10,900 (10,400 to 11,400) from gpus_8" in page.words
    assert "a wrong start costs 12 GPU-hours" in page.words
    text = stage.report_md.read_text()
    assert "| scaling_efficiency | **FAIL** |" in text and "&lt;communication first>" in text


def test_a_passed_stage_says_what_going_on_costs(run: RunDir) -> None:
    stage = sample.finished_stage(run, "gpus_8")
    page = Page(report(stage))
    assert "gpus_8 passed all 2 checks" in page.words and "Nothing: gpus_64 may start." in page.words
    assert re.search(
        r"To go on costs gpus_64: at most 384 GPU-hours, \$[\d,]+ \(64 GPUs for 6 h at \$[\d.]+\)", page.words
    )
    assert "Promoted by gates on 2027-01-15" in page.words and "opens no real stage" in page.words


def test_a_person_who_promoted_is_named(run: RunDir) -> None:
    stage = sample.finished_stage(run, "gpus_8")
    sample.promotion(stage, person="Ada <ada@example.org>", because="the node was swapped & rerun")
    page = Page(report(stage))
    assert "Promoted by Ada <ada@example.org>" in page.words and "the node was swapped & rerun" in page.words


def test_nothing_is_loaded_from_outside_and_everything_is_escaped(run: RunDir) -> None:
    evil = '<script>alert(1)</script> & "quoted" | `code`'
    stage = sample.finished_stage(run, "gpus_8")
    sample.verdict(stage, [Check(evil, Outcome.FAIL, evil, 1.0, (0.5, 1.5), 2.0, evil, 3, evil, evil, evil, evil)])
    write_json(stage.cause, {"cause": "gate", "detail": evil, "time": 1.0})
    for path in (report(stage), run.report_html):
        page = Page(path)
        assert not page.tags & {"script", "link", "img", "iframe", "object"}
        assert all(not a.startswith(("http", "//")) or a.startswith("http://127.0.0.1:8080/") for a in page.addresses)
        assert "url(" not in path.read_text() and "@import" not in path.read_text()
        assert "<script>alert(1)</script>" in page.words
    assert "<script" not in stage.report_md.read_text() and "<script" not in run.report_md.read_text()


def test_the_ladder_shows_stages_forecast_and_links(run: RunDir) -> None:
    for name in sample.GPUS:
        report(sample.finished_stage(run, name, failed=name == "gpus_1000"))
    page = Page(report_run(run))
    assert "gpus_8, gpus_64 promoted; gpus_1000 failed: scaling_efficiency" in page.words
    assert {f"{name}/report.html" for name in sample.GPUS} <= set(page.addresses)
    assert "http://127.0.0.1:8080/dags/scale_up_gpt_stdlib/runs/manual__1" in page.addresses
    assert "10,900 11,000 +0.9%" in page.words
    text = run.report_md.read_text()
    assert "\n\n| stage | verdict |" in text and "| 10,900 | 11,000 | +0.9% |" in text
    assert "a <b>note</b> | more" in page.words


def test_a_stage_refused_before_it_started(run: RunDir) -> None:
    sample.finished_stage(run, "gpus_8")
    stage = run.stage("gpus_64")
    check = Check(
        "forecast_efficiency", Outcome.FAIL, "71% is expected; at least 90% is asked", 0.71, (0.66, 0.75), 0.9,
        "of gpus_8's tokens/s/GPU", 1, next_step="mend what slows the larger scale",
    )  # fmt: skip
    write_json(stage.forecast, {"outcome": "FAIL", "checks": [check.to_json()], "throughput": {"median": 7800.0}})
    page = Page(report(stage))
    assert "gpus_64 was refused before it started: forecast_efficiency" in page.words
    assert "71.0% against a limit of 90.0%: 19.0 points off" in page.words
    assert "To go on costs gpus_64: at most 384 GPU-hours" in page.words
    assert "No attempt has recorded anything." in page.words
    ladder = Page(run.report_html)
    assert "gpus_8 promoted; gpus_64 was refused before it started: forecast_efficiency" in ladder.words


def test_a_stopped_stage_shows_the_end_of_its_log(run: RunDir) -> None:
    stage = run.stage("gpus_8")
    sample.config(stage)
    sample.append(stage, [sample.header(), *(sample.step(n) for n in range(1, 40))])
    sample.append(stage, [sample.header(2), *(sample.step(n, attempt=2) for n in range(31, 45))])
    stage.attempt(1).mkdir()
    (stage.attempt(1) / "log.txt").write_text("line\nRuntimeError: <no memory left>\n")
    write_json(stage.cause, {"cause": "job_over", "detail": "exit code 1", "time": 1.0, "state": "failed"})
    page = Page(report(stage))
    assert "gpus_8 was stopped: exit code 1" in page.words and "RuntimeError: <no memory left>" in page.words
    assert "Attempt 1: steps 1 to 30 count" in page.words and "Attempt 2: steps 31 to 44 count" in page.words


@pytest.mark.parametrize("name", ["config", "forecast", "verdict", "promotion", "job", "metrics", "early", "info"])
@pytest.mark.parametrize("damage", ["gone", "torn", "{}\n"])
def test_a_missing_or_broken_file_is_said_not_raised(run: RunDir, name: str, damage: str) -> None:
    stage = sample.finished_stage(run, "gpus_64")
    path: Path = getattr(run if name == "info" else stage, name)
    if damage == "gone":
        path.unlink(missing_ok=True)
    else:
        path.write_text('{"kind": "st\n\n' if damage == "torn" else damage)
    page = Page(report(stage))
    if damage != "{}\n" and name in ("forecast", "config", "verdict"):
        assert f"{name}.json" in page.words[page.words.index("What is missing") :]
    Page(run.report_html)


def test_an_empty_run_has_a_report_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    lost = RunDir(tmp_path / "runs" / "x" / "y")
    page = Page(report_run(lost))
    assert "No stage has begun" in page.words and "the plan of the run cannot be read" in page.words
    assert "gpus_8 has not begun" in Page(report(lost.stage("gpus_8"))).words


def test_pictures_keep_spikes_and_stay_inside() -> None:
    points = [(float(n), 1.0) for n in range(100_000)]
    points[54_321] = (54_321.0, 9.0)
    kept = pictures.thinned(points)
    assert (54_321.0, 9.0) in kept and len(kept) <= 1000
    curve = pictures.Curve("loss <of> one", [(1.0, 2.0), (1.0, 2.0)], "#000")
    drawn = pictures.chart([curve], x="x", y="y", x_number=words.short, y_number=words.short)
    assert "loss &lt;of&gt; one" in drawn and "nan" not in drawn
    assert pictures.chart([], x="x", y="y", x_number=words.short, y_number=words.short) == ""


@pytest.mark.parametrize(
    ("outcome", "interval"),
    [("PASS", (-float("inf"), 0.5)), ("FAIL", None), ("INVALID", (0.2, 0.2)), ("NEED_MORE_DATA", (0.1, 0.4))],
)
def test_check_pictures(outcome: str, interval: tuple[float, float] | None) -> None:
    drawn = pictures.check_picture(outcome, 0.3, interval, 0.3, words.number)
    xs = [float(x) for x in re.findall(r'(?:cx|x1|x2)="([^"]+)"', drawn)]
    assert xs and all(0 <= x <= 320 for x in xs)
    assert pictures.check_picture(outcome, None, interval, 0.3, words.number) == ""


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0.5, "of gpus_8's", "50.0%"), (12345.6, "", "12,346"), (0.00001, "nats", "1.0e-05"), (3.0, "", "3"),
        (None, "", "unknown"), (float("inf"), "", "inf"), (0.01234567, "nats", "0.01235"),
    ],
)  # fmt: skip
def test_numbers(value: float | None, unit: str, said: str) -> None:
    assert words.number(value, unit) == said
