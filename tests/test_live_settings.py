"""The ``live:`` block, laid over one another and frozen with the recipe; what its rules know before a stage."""

import yaml
from config_texts import CLUSTER, EXPERIMENT

from tasks import config
from tasks.config.as_trained import as_trained
from tasks.config.live import Live
from tasks.live import terms_of
from tasks.plan import difference, freeze, resolve, thaw
from tasks.run import plan_of
from tasks.stage_dir import write_json

BLOCKS = """\
live: {hang: {steps: 11, start_seconds: 60}, loss: {action: page}}
"""


def written(tmp_path, monkeypatch):
    """Write an experiment that says something at all four places; load it."""
    raw = yaml.safe_load(EXPERIMENT + BLOCKS)
    raw["stages"][1]["live"] = {"hang": {"steps": 22}, "loss": {"tolerance": 0.05}}
    raw["rehearsal"]["live"] = {"hang": {"steps": 33}}
    raw["stages"][1]["rehearsal"] = {"live": {"finite": {"action": "stop"}}}
    for kind, name, value in (("experiments", "x", raw), ("clusters", "c", yaml.safe_load(CLUSTER))):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / f"{name}.yaml").write_text(yaml.safe_dump(value))
    monkeypatch.setenv("SCALEUP_CONFIGS", str(tmp_path))
    return config.load_experiment("x")


def test_what_is_said_nearer_to_the_stage_and_its_rehearsal_wins(tmp_path, monkeypatch):
    experiment = written(tmp_path, monkeypatch)
    first, second = (as_trained(experiment, index, emulated=False).stage.live for index in (0, 1))
    rehearsed = as_trained(experiment, 1, emulated=True).stage.live
    assert (first.hang.steps, second.hang.steps, rehearsed.hang.steps) == (11, 22, 33)
    assert {live.hang.start_seconds for live in (first, second, rehearsed)} == {60}
    assert (first.loss.action, second.loss.action, second.loss.tolerance) == ("page", "page", 0.05)
    assert (second.finite.action, rehearsed.finite.action) == ("restart", "stop")


def test_a_frozen_recipe_has_the_same_rules_and_tells_a_change(tmp_path, monkeypatch):
    experiment = written(tmp_path, monkeypatch)
    clusters = config.clusters_of(experiment)
    frozen = freeze(experiment, clusters)
    thawed, _ = thaw(frozen)
    ladder, again = (resolve(one, clusters=clusters) for one in (experiment, thawed))
    assert [stage.live.settings for stage in ladder.stages] == [stage.live.settings for stage in again.stages]
    assert ladder.digest == again.digest
    assert ladder.stage("gpus_64").live.hang.steps == 33
    changed = experiment.model_copy(update={"live": Live.model_validate({"hang": {"steps": 12}})})
    assert "live.hang.steps: 11.0 -> 12.0" in difference(frozen, freeze(changed, clusters))
    assert resolve(changed, clusters=clusters).digest != ladder.digest


def test_unsaid_settings_are_the_defaults():
    assert Live.model_validate({"hang": {"steps": 5}}).settings["hang"] == {**Live().settings["hang"], "steps": 5}
    assert Live().settings["false_stops"] == 0.02


def test_what_is_known_before_a_stage_is_read_from_baselines_and_the_forecast(begin, configs):
    stage = begin(declares={})
    write_json(stage.forecast, {"outcome": "PASS", "held_out_loss": {"high": 2.5, "median": 2.4, "tokens": 5000}})
    decided = plan_of(stage)
    known = terms_of(stage, decided).known
    assert (known("f" * 64, None).expected.source, known("", (1000.0, 3.0)).expected.source) == (
        "the stage's own first window",
        "the registered forecast",
    )
    run = {"tokens": [1000, 2000, 4000], "held_out_loss": [3.0, 2.9, 2.8]}
    write_json(configs.root / "baselines" / f"tiny_{'f' * 12}.json", {"fingerprint": "f" * 64, "runs": [run]})
    write_json(configs.root / "baselines" / "noise_tiny_here_8gpus.json", {"launch_sd": 0.03, "repeats": 4})
    found = known("f" * 64, (1000.0, 3.0))
    assert (found.expected.source, found.launch_sd, found.loss_sd) == ("the reference curve", 0.03, 0.0)
    changed = begin(run_id="run_2", declares={"data": "more code"})
    assert terms_of(changed, plan_of(changed)).known("f" * 64, None).expected.source == "the stage's own first window"
