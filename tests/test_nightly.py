"""Nights with a trainer that takes no time: planned, measured, judged, rerun, told once, and shown."""

import re
from dataclasses import replace

import pytest
from nightly_cases import BLOCK, TONIGHT, night_of, past_of, plan_file, point, the_case

from tasks.cli import main
from tasks.errors import ScaleupError
from tasks.nightly import changed, incidents, lease, points, run_case
from tasks.nightly.climb import run_night
from tasks.nightly.conclude import conclude
from tasks.nightly.night import NightDir, look, plan_night
from tasks.run import open_run, runs
from tasks.stage_dir import read_json, write_json

SPEED = 32.0  # tokens/s/GPU of the foreign trainer: 16 sequences of 8 tokens on 8 GPUs in half a second


@pytest.fixture
def root(configs):
    """A plan with the one case ``tiny``."""
    plan_file(configs.root)
    return configs.root


def night(said=TONIGHT, **chosen):
    return run_night(lambda line: None, night=said, **chosen)


def judged(name="tiny", said=TONIGHT):
    return {one["series"]: one for one in read_json(NightDir(said).case(name))["judgements"]}


def test_a_first_night_measures_and_learns(root, capsys):
    assert main(["nightly", "run", "--night", TONIGHT]) == 0
    out = capsys.readouterr().out
    assert f"night {TONIGHT}: tiny" in out and "GREEN: 1 case ran" in out
    (measured,) = points.here("tiny")
    assert measured.values["tokens_per_gpu_second"] == pytest.approx(SPEED, rel=0.01)
    assert measured.natures["tokens_per_gpu_second"] == "modelled" and measured.natures["held_out_loss"] == "real"
    assert measured.values["startup_seconds"] > 0 and measured.tokens == 40 * 16 * 8
    assert measured.hardware.startswith("here, 8 emulated GPUs on") and measured.environment.startswith(
        "none, Python 3"
    )
    assert judged()["tokens_per_gpu_second"]["state"] == "learning"
    (run,) = runs()
    assert run.run_id == "nightly_2026-12-03__1" and not run.stage("gpus_8").checkpoints.exists()
    assert main(["nightly", "run", "--night", TONIGHT]) == 0 and len(list(runs())) == 1  # the same night once
    assert main(["nightly", "status"]) == 0
    assert "night 1 of the 10" in capsys.readouterr().out


def test_a_suspect_is_rerun_twice_and_opens_one_incident_that_is_told_quieted_and_closed(root, capsys):
    past_of(14, 1.1 * SPEED)
    points.write(point(night_of(1), tokens_per_gpu_second=SPEED))
    found = night()
    assert found["red"] and found["open"] == ["tiny/tokens_per_gpu_second"]
    assert len(read_json(NightDir(TONIGHT).case("tiny"))["runs"]) == 3
    one = judged()["tokens_per_gpu_second"]
    assert (one["state"], one["first_bad"], one["last_good"]) == ("alarm", night_of(1), night_of(2))
    assert "3 of 3 runs tonight agree" in one["says"] and len(one["attempts"]) == 3
    page = NightDir(TONIGHT).report.read_text()
    assert "scaleup nightly accept tiny/tokens_per_gpu_second" in page and "What changed" in page
    again = conclude(TONIGHT)  # killed and made again
    assert incidents.open_of("tiny", "tokens_per_gpu_second")["nights"] == [TONIGHT] and again["red"]

    later = night_of(-1)
    points.write(point(later, tokens_per_gpu_second=SPEED))
    assert night(later)["red"] and judged(said=later)["tokens_per_gpu_second"]["state"] == "open"
    assert len(read_json(NightDir(later).case("tiny"))["runs"]) == 1  # no rerun for what is known
    assert incidents.open_of("tiny", "tokens_per_gpu_second")["nights"] == [TONIGHT, later]
    capsys.readouterr()
    assert main(["ack", "tiny/tokens_per_gpu_second", "--because", "the switch is slow"]) == 0
    assert not conclude(later)["red"] and "the switch is slow" in NightDir(later).report.read_text()

    last = night_of(-4)
    for index in (-2, -3, -4):
        points.write(point(night_of(index), tokens_per_gpu_second=1.1 * SPEED))
    assert not night(last)["red"]
    assert judged(said=last)["tokens_per_gpu_second"]["state"] == "recovered"
    (over,) = incidents.all_past()
    assert over["good_from"] == night_of(-2) and over["how"].startswith("recovered")


def test_a_suspicion_that_two_reruns_deny_is_no_alarm(root):
    past_of(14, SPEED)
    points.write(point(night_of(1), tokens_per_gpu_second=0.9 * SPEED))
    points.write(point(TONIGHT, tokens_per_gpu_second=0.9 * SPEED))  # the first run of tonight was slow
    points.write(point(TONIGHT, 1, tokens_per_gpu_second=SPEED))
    assert not night()["red"]
    one = judged()["tokens_per_gpu_second"]
    assert one["state"] == "unconfirmed" and one["value"] == pytest.approx(SPEED, rel=0.01)
    assert [run.run_id for run in runs()] == ["nightly_2026-12-03__3"]


def test_an_accepted_level_is_the_baseline(root, capsys):
    past_of(14, 1.1 * SPEED)
    points.write(point(night_of(1), tokens_per_gpu_second=SPEED))
    for attempt in (0, 1, 2):  # of tonight, measured already
        points.write(point(TONIGHT, attempt, tokens_per_gpu_second=SPEED))
    assert night()["red"]
    assert main(["nightly", "accept", "tiny/tokens_per_gpu_second", "--because", "smaller batch", "--by", "ada"]) == 0
    assert f"from {night_of(1)} on; it was 35." in capsys.readouterr().out
    assert not night(night_of(-1))["red"]
    assert judged(said=night_of(-1))["tokens_per_gpu_second"]["state"] == "steady"
    assert main(["nightly", "accept", "tiny/tokens_per_gpu_second", "--because", "x"]) == 1
    assert "has no open incident" in capsys.readouterr().err


def died(said, *attempts):
    """Write runs of a night that failed."""
    for attempt in attempts:
        points.write(replace(point(said, attempt), failed="it died"))


def test_a_case_that_does_not_run_is_tried_again_and_told_and_closed(root, configs):
    configs.experiment(settings={"fail_at": 5})
    died(TONIGHT, 1, 2)
    found = night()
    assert found["open"] == ["tiny/runs"] and "3 of 3 runs failed" in found["sentence"]
    assert "gpus_8" in points.read("tiny", TONIGHT, 0).failed
    configs.experiment()
    assert not night(night_of(-1))["red"]
    assert [over["how"] for over in incidents.all_past()] == [f"recovered in night {night_of(-1)}"]


def test_a_quarantine_counts_no_alarm_until_its_day_and_its_end_is_told(configs):
    kept = {"owner": "ada", "reason": "the switch", "until": TONIGHT}
    plan_file(configs.root, {**BLOCK, "quarantine": kept})
    died(TONIGHT, 0, 1, 2)
    died(night_of(-1), 0)
    found = night()
    assert not found["red"] and found["open"] == [] and incidents.open_of("tiny", "runs")
    assert "in quarantine until" in NightDir(TONIGHT).report.read_text()
    found = night(night_of(-1))
    assert found["red"]
    assert found["notices"][0].startswith(f"the quarantine of tiny expired on {TONIGHT}: ada was to mend 'the switch'")


def test_a_scale_up_at_work_holds_its_cluster_and_a_night_waits_or_gives_up(root, begin, monkeypatch):
    stage = begin("run_1")  # its forecast was written just now
    plan_night(TONIGHT)
    waits = "tiny waits: here is taken by the scale-up tiny/run_1 (it is between two steps)"
    seen = look(TONIGHT, "tiny")
    assert (seen.done, seen.line) == (False, waits)
    late = read_json(NightDir(TONIGHT).plan)["time"] + 3 * 3600
    monkeypatch.setattr(lease, "BETWEEN_STEPS_SECONDS", 4 * 3600.0)
    assert look(TONIGHT, "tiny", late).line.startswith("tiny did not run: here is taken by the scale-up")
    assert conclude(TONIGHT)["sentence"].startswith("tiny did not run: here is taken by")
    write_json(stage.cause, {"cause": "person", "detail": "x"})
    assert lease.take("here", "a", 1.0) is None
    assert lease.take("here", "b", 1.0) == "here is taken by a" and lease.take("here", "a", 1.0) is None
    lease.release("here", "b")
    assert lease.take("here", "b", 1.0) is not None
    lease.release("here", "a")
    assert lease.take("here", "b", 1.0) is None
    assert lease.take("here", "c", 1.0, now=late + 9999) is None  # a lease that nobody let go of ends


def test_a_night_that_was_killed_anywhere_goes_on_with_the_same_runs(root, monkeypatch):
    """Every step of a look is made to be the last one, once."""
    plan_night(TONIGHT)
    for module, name in (("tasks.launch", "launch"), ("tasks.evaluate", "evaluate"), ("tasks.report", "report")):
        with monkeypatch.context() as patch:
            patch.setattr(f"{module}.{name}", killed)
            with pytest.raises(KeyboardInterrupt):
                while not look(TONIGHT, "tiny").done:
                    pass
    with monkeypatch.context() as patch:
        patch.setattr("tasks.nightly.night.write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            look(TONIGHT, "tiny")
    assert not night()["red"]
    (run,) = runs()
    stage = run.stage("gpus_8")
    assert not stage.attempt(2).exists() and stage.metrics.read_text().count('"kind": "header"') == 1


def killed(*_, **__):
    raise KeyboardInterrupt


def test_changed_keys_are_laid_over_the_file_for_the_run_and_decide_its_fate(configs):
    slower = {"train": {"checkpointing": {"every_steps": 7}}}
    plan_file(configs.root, {**BLOCK, "changes": {"often": slower}, "seeds": [1, 2]})
    assert plan_night(TONIGHT) == ["tiny-often-seed_1", "tiny-often-seed_2"]
    night()
    orders = [read_json(run.stage("gpus_8").config) for run in runs()]
    assert [one["seed"] for one in orders] == [1, 2]
    assert {one["checkpointing"]["every_steps"] for one in orders} == {7}
    assert points.here("tiny-often-seed_1")[0].values["held_out_loss"] > 0


def test_what_changed_names_packages_recipe_and_commits(root, configs):
    night(night_of(1))
    configs.experiment(seed=8)
    night()
    past = points.here("tiny")
    digest = "0" * 16
    kept = points.folder() / "packages" / f"{past[0].packages}.txt"
    (kept.parent / f"{digest}.txt").write_text(re.sub(r"(?m)^numpy==.*$", "numpy==0.1", kept.read_text()))
    points.write(points.Point.from_json({**past[0].__dict__, "packages": digest}))
    found = changed.between(points.here("tiny"), night_of(1), TONIGHT)
    assert found["recipe"] == ["seed: 7 -> 8"]
    assert [line[:9] for line in found["packages"]] == ["-numpy==0", "+numpy==" + found["packages"][1][8]]
    assert found["machines"] == found["data"] == []
    assert changed.between(past, "2026-01-01", TONIGHT) == {"unknown": ["no run of 2026-01-01 is known"]}


def test_a_past_is_imported_whole_or_not_at_all_and_exported_as_it_was(root, tmp_path, capsys):
    past_of(12, SPEED)
    assert main(["nightly", "export", str(tmp_path / "a.csv")]) == 0
    text = (tmp_path / "a.csv").read_text()
    assert text.startswith("case,night,attempt,hardware,environment,tokens,commit,run,tokens_per_gpu_second,")
    lines = [line.replace("tiny,", "theirs,") for line in text.splitlines()]
    (tmp_path / "b.csv").write_text("\n".join(lines) + "\n")
    capsys.readouterr()
    assert main(["nightly", "import", str(tmp_path / "b.csv")]) == 0
    assert main(["nightly", "import", str(tmp_path / "b.csv")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "12 measurements imported, 0 were there",
        "0 measurements imported, 12 were there",
    ]
    assert [p.values for p in points.here("theirs")] == [p.values for p in points.here("tiny")]
    assert all(p.imported for p in points.here("theirs"))


HEAD = "case,night,hardware,environment,tokens_per_gpu_second"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("case,night,hardware\n", "line 1 has no column environment; columns are case"),
        (f"{HEAD},mfu\n", "line 1 has an unknown column 'mfu'"),
        ("case,night,hardware,environment\n", "line 1 has no series"),
        (
            f"{HEAD}\nx,2026-12-01,h,e,5\nx,2026-12-02,h,e,fast\n",
            "line 3: tokens_per_gpu_second is 'fast', not a number",
        ),
        (f"{HEAD}\nx,1.12.2026,h,e,5\n", "line 2: night '1.12.2026' is no date"),
        (f"{HEAD}\nx,2026-12-01,,e,5\n", "line 2: hardware is empty; a night is compared with its own class only"),
        (f"{HEAD}\nx,2026-12-01,h,e,nan\n", "line 2: tokens_per_gpu_second is nan; it must be finite"),
        (f"{HEAD}\nx,2026-12-01,h,e\n", "line 2 has 4 fields; the first line names 5"),
        (f"{HEAD}\n../x,2026-12-01,h,e,5\n", "line 2: case '../x' may hold"),
        (f"{HEAD}\nx,2026-12-01,h,e,5\nx,2026-12-01,h,e,6\n", "line 3 measures x/2026-12-01/0 again, as line 2 does"),
    ],
)
def test_a_table_that_is_wrong_is_named_by_line_and_nothing_is_kept(root, tmp_path, capsys, text, said):
    (tmp_path / "x.csv").write_text(text)
    assert main(["nightly", "import", str(tmp_path / "x.csv")]) == 1
    assert said in capsys.readouterr().err and points.cases() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ack", "tiny", "--because", "x"], "'tiny' must be CASE/SERIES; "),
        (["nightly", "status"], "no night is known here; there is none yet; begin with: scaleup nightly run"),
        (["nightly", "run", "--night", "today"], "night 'today' is no date; write it as 2026-12-31"),
        (["nightly", "run", "--case", "tinny"], "unknown case 'tinny'"),
    ],
)
def test_a_wrong_word_is_answered_in_one_sentence(root, capsys, arguments, said):
    assert main(arguments) == 1
    assert said in capsys.readouterr().err


def test_the_run_of_a_night_has_one_name_for_good(root):
    case = the_case()
    assert run_case.run_id(case, TONIGHT, 0) == run_case.run_id(case, TONIGHT, 0) != run_case.run_id(case, TONIGHT, 1)
    drawn = {run_case.opened(case, TONIGHT, attempt).path for attempt in (0, 1, 0)}
    assert len(drawn) == 2
    with pytest.raises(ScaleupError, match="is not planned"):
        look(TONIGHT, "tiny")
    open_run("tiny", run_id="other", origin={})
