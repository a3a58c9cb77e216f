"""What a stage hands over: the optional commands of a trainer, and all that they may answer."""

import sys

import pytest
from conftest import EXPERIMENT
from running import state_of, until

from tasks import hand_over
from tasks.config import load_experiment
from tasks.errors import CheckpointUnsound, ConfigInvalid
from tasks.launch import launch
from tasks.promote import promote
from tasks.run import plan_of
from tasks.stage_dir import write_json

FOREIGN = EXPERIMENT["trainer"]
OWN = {
    "evaluate": [*FOREIGN["command"][:2], "evaluate", "{checkpoint}"],
    "checkpoints": [*FOREIGN["command"][:2], "checkpoints", "{stage_dir}"],
}


def says(text, code=0, place="{checkpoint}"):
    """A command that prints ``text`` and exits with ``code``; a text for a code goes to where errors go."""
    return [sys.executable, "-c", f"import sys; print({text!r}); sys.exit({code!r})", place]


@pytest.fixture
def trained(begin):
    def train(settings=None, **commands):
        stage = begin(trainer={**FOREIGN, "settings": settings or {}, **commands})
        launch(stage)
        until(lambda: state_of(stage) == "succeeded")
        return stage

    return train


def promoted(stage):
    decided = plan_of(stage)
    found = hand_over.checkpoint(stage, decided)
    return found, hand_over.evaluated(stage, decided, found)


def test_what_libraries_print_beside_the_answer_is_passed_over(trained):
    answer = 'loading\n{"loss": 1.5, "sequences": 64}\ndone'
    assert promoted(trained(evaluate=says(answer)))[1] == {"loss": 1.5, "sequences": 64}


def test_without_the_command_nothing_is_evaluated(trained):
    assert promoted(trained())[1] is None


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (says("", "no such tensor"), r"command evaluate \(.*\) ended with exit code 1; it said:\n  no such tensor$"),
        (says('{"loss": NaN, "sequences": 1}'), "the held-out loss of .*00000030.state is nan, no number$"),
        (says('{"loss": "1.5", "sequences": 1}'), "is '1.5', no number$"),
        (says("1.5"), "is None, no number$"),
        (says('{"loss": 1.5}'), "says sequences: None; it must be on how many the held-out loss was computed$"),
        (says('{"loss": 1.5, "sequences": 0}'), "says sequences: 0; it must be"),
        (says('{"loss": 1.5'), "printed a line that is no JSON object"),
        (["/no/such/program", "{checkpoint}"], "could not be started: .*No such file"),
    ],
)
def test_a_checkpoint_that_cannot_be_evaluated_is_not_handed_over(trained, command, sentence):
    with pytest.raises(CheckpointUnsound, match=f"^gpus_8.*{sentence}"):
        promoted(trained(evaluate=command))


def test_a_checkpoint_that_its_trainer_cannot_load_is_not_promoted(trained):
    stage = trained(**OWN)
    (stage.checkpoints / "00000030.state").write_text("30 3840")  # half of it
    write_json(stage.verdict, {"outcome": "PASS", "checks": []})
    with pytest.raises(CheckpointUnsound, match=r"command evaluate .* ended with exit code 1"):
        promote(stage)
    assert not stage.promotion.exists()


def test_only_what_the_trainer_s_list_calls_whole_is_handed_over(trained):
    stage = trained(settings={"silent": True}, **OWN)
    (stage.checkpoints / "00000030.state").write_text("30 3840")
    with pytest.raises(CheckpointUnsound, match="no hand_over checkpoint of step 30: whole are those of steps 5, 10, "):
        promoted(stage)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ('{"step": "30", "path": "x", "whole": true}', "a row is "),
        ('{"step": 30, "path": "x", "whole": "yes"}', "no hand_over checkpoint of step 30: there is none$"),
        ('{"step": 30, "path": "x", "whole": true}', "recorded a checkpoint at .*gpus_8/x; nothing is there"),
        ('{"step": 31, "path": "x", "whole": true}', "whole are those of steps 31$"),
    ],
)
def test_a_list_of_checkpoints_is_not_believed_blindly(trained, row, sentence):
    with pytest.raises(CheckpointUnsound, match=sentence):
        promoted(trained(settings={"silent": True}, checkpoints=says(row, place="{stage_dir}")))


def test_recorded_rows_go_before_the_list(trained):
    stage = trained(checkpoints=says("", "must not be asked", place="{stage_dir}"))
    assert promoted(stage)[0].step == 30


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"capabilities": ["evaluate"]},
            "trainer.capabilities: evaluate is a command; say it as evaluate: [program, ..., '{checkpoint}'] beside "
            "the capabilities",
        ),
        (
            {"evaluate": ["x.py"]},
            "trainer.evaluate: names no {checkpoint}, so it cannot know which is meant; add it",
        ),
        (
            {"checkpoints": ["x.py", "{checkpoint}"]},
            "trainer.checkpoints: names no {stage_dir}, so it cannot know which is meant; add it",
        ),
    ],
)
def test_what_is_wrong_with_the_commands_is_said_before_anything_starts(configs, changes, sentence):
    configs.experiment(trainer={**FOREIGN, **changes})
    with pytest.raises(ConfigInvalid) as raised:
        load_experiment("tiny")
    assert f"  {sentence}" in str(raised.value).splitlines()


def test_a_command_is_a_capability(configs):
    configs.experiment(trainer={**FOREIGN, "capabilities": [], **OWN})
    trainer = load_experiment("tiny").trainer
    assert trainer.can("evaluate") and trainer.can("checkpoints") and not trainer.can("resume")
