"""Reports say what the folders hold, say what they lack, escape everything, and load nothing from outside."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import sample_runs as sample

from tasks.gates.core import Check, Measurement, Outcome
from tasks.probe import order
from tasks.report import report, report_run
from tasks.run import open_run, plan_of
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
    assert "Sure: the interval is 77.0% to 79.0%, wholly on the bad side of the limit; n = 70." in page.words
    assert "See where a step's time goes <communication first>." in page.words
    assert 'scaleup promote gpt_stdlib/20261201_030000 gpus_1000 --because "..."' in page.words
    assert "rehearsal on emulated GPUs" in page.words
    assert page.words.index("scaling_efficiency failed modelled") < page.words.index("finite_loss passed")
    assert "scaleup run gpt_stdlib" in page.words
    assert "modelled step_seconds, tokens_per_gpu_second" in page.words
    assert "Not promoted." in page.words
    assert "10,900 (10,400 to 11,400) from gpus_8" in page.words
    assert "a wrong start costs 12 GPU-hours" in page.words
    text = stage.report_md.read_text()
    assert "| scaling_efficiency | **FAIL** (modelled) |" in text and "&lt;communication first>" in text


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


def test_an_undecided_stage_says_what_would_decide_it_and_what_that_costs(run: RunDir) -> None:
    stage = sample.finished_stage(run, "gpus_64")
    stage.promotion.unlink()
    buys = Measurement("probe", 64, 60, 2.0, 40.0, "60 steps more on 64 GPUs")
    sample.verdict(
        stage,
        [
            Check("scaling_efficiency", Outcome.NEED_MORE_DATA, "89% to 92% is known", 0.905, (0.89, 0.92), 0.9,
                  "of gpus_8's tokens/s/GPU", 70, thresholds={"at_least": 0.9, "confidence": 0.95}, measurement=buys,
                  inputs={"launch_sd": "prior, 0.005"}, next_step="measure more"),
            Check("canary", Outcome.FAIL, "too slow", 0.8, (0.79, 0.81), 0.95, "of the forecast tokens/s/GPU", 20,
                  shadow=True),
            Check("loss_near_baseline", Outcome.NOT_COMPARABLE, "the data mix changed", 2.4, unit="nats", n=1),
        ],
    )  # fmt: skip
    page = Page(report(stage))
    assert "gpus_64 cannot be decided yet: scaling_efficiency needs more data" in page.words
    assert "Not sure: the 95% interval is 89.0% to 92.0%, and the limit lies inside it; n = 70." in page.words
    assert (
        "60 steps more on 64 GPUs. It costs 2 GPU-hours ($5.00). To be wrong costs 40 GPU-hours ($100)." in page.words
    )
    assert "Goes by launch sd: prior, 0.005" in page.words
    assert "scaleup calibrate gpt_stdlib --repeats 5 --stage gpus_64" in page.words
    assert "canary failed shadow: asked and shown, it does not count" in page.words
    assert "loss_near_baseline was not compared" in page.words
    assert "A declared change makes a comparison meaningless." in page.words
    text = stage.report_md.read_text()
    assert "| canary | **FAIL** (shadow) (modelled) |" in text and "| **NOT_COMPARABLE** |" in text


def test_a_forecast_is_shown_against_what_came(run: RunDir) -> None:
    for name in ("gpus_8", "gpus_64"):
        stage = sample.finished_stage(run, name)
        sample.scored(stage)
        report(stage)
    page = Page(stage.report_html)
    assert "10,900 (10,400 to 11,400) 10,780 -1.1% inside above 36% of it" in page.words
    assert "2.9000 (2.8000 to 3.0000) 3.1000 +6.9% outside above all but 1%" in page.words
    assert "forecast against outcome" in stage.report_html.read_text()
    ladder = Page(report_run(run))
    assert "gpus_64 Held-out loss real 2.9000 (2.8000 to 3.0000) 3.1000 +6.9% outside" in ladder.words
    assert "| gpus_64 | tokens/s/GPU (modelled) | 10,900 (10,400 to 11,400) | 10,780 |" in run.report_md.read_text()
    assert "gpus_64 tokens/s/GPU" in run.report_html.read_text()


def test_what_is_not_known_is_said_once(run: RunDir) -> None:
    stage = sample.finished_stage(run, "gpus_8")
    report(stage)
    assert "unknown unknown" not in stage.report_md.read_text() + Page(stage.report_html).words
    assert "- tokens/s/GPU: unknown: nothing before" in stage.report_md.read_text()


def test_alarms_are_listed_and_marked_on_both_curves(run: RunDir) -> None:
    stage = sample.finished_stage(run, "gpus_64")
    alarms = [
        {"rule": "spikes", "action": "note", "step": 130, "time": 1_800_000_130.0, "says": "the loss rose <7 sd>"},
        {"rule": "throughput", "action": "page", "step": 150, "time": 1.8e9, "says": "3% slower", "window": [111, 150]},
        {"rule": "hang", "action": "restart", "step": 99_999, "time": 1.8e9, "says": "no record for 5 minutes"},
    ]
    write_json(stage.live, {"alarms": alarms, "state": {}})
    html = report(stage).read_text()
    page = Page(stage.report_html)
    assert "spikes note 130 2027-01-15 08:02 UTC the loss rose <7 sd>" in page.words
    for name in ("spikes (note), step 130", "throughput (page), step 150"):
        assert html.count(f">{name}<") == 2
    assert "- step 150, throughput (page): 3% slower" in stage.report_md.read_text()
    crowd = [{**alarms[0], "step": 100 + n} for n in range(60)]
    write_json(stage.live, {"alarms": [*crowd, alarms[1]], "state": {}})
    html = report(stage).read_text()
    assert html.count("(note), step") <= 16 and html.count("throughput (page), step 150") == 2


def test_probes_are_listed_with_who_asked_and_what_they_showed(run: RunDir) -> None:
    stage = sample.finished_stage(run, "gpus_64")
    plan = plan_of(stage)
    orders = {
        "gpus_16": {"inside": True, "says": "a point for what follows"},
        "gpus_64.1": {"gate": "scaling_efficiency", "moment": "end", "gpu_hours": 2.0, "says": "another launch"},
    }
    for name, said in orders.items():
        gpus = int(name.partition(".")[0].removeprefix("gpus_"))
        order(stage.probe(name), stage, plan, gpus=gpus, steps=60, **said)
    records = [sample.step(n, phase="probe", speed=9000.0) for n in range(1, 61)]
    stage.probe("gpus_16").metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    page = Page(report(stage))
    assert "gpus_16 60 steps on 16 GPUs the experiment (probe_gpus) a point for what follows" in page.words
    assert re.search(
        r"9,0\d\d \(8,\d\d\d to 9,\d\d\d\) tokens/s/GPU \(modelled\)|8,9\d\d \(8,\d\d\d to 9,\d\d\d\)", page.words
    )
    assert "scaling_efficiency (end) another launch not complete 2 GPU-hours ($5.00)" in page.words


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
