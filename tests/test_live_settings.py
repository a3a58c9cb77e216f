"""The ``live:`` block: laid over one another from experiment to stage to rehearsal, and frozen with the recipe."""

import yaml
from config_texts import CLUSTER, EXPERIMENT

from tasks import config
from tasks.config.as_trained import as_trained
from tasks.config.live import Live
from tasks.plan import difference, freeze, resolve, thaw

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
