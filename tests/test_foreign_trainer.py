"""Any trainer: one of another make, with its own checkpoint format and few capabilities, climbs two stages."""

import ast
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import EXPERIMENT, Configs

from tasks.cli import main
from tasks.errors import ConfigInvalid
from tasks.records import read_metrics
from tasks.run import ladder_of
from tasks.stage_dir import RunDir, read_json
from training import manifest
from training.config import read_config

SOURCE = Path(__file__).parent / "foreign_trainer.py"
GATES = {"finite_loss": {}, "resume_parity": {}, "steady_throughput": {}}


def test_it_knows_nothing_of_this_project_and_is_short():
    tree = ast.parse(SOURCE.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"json", "os", "random", "signal", "sys", "time", "pathlib"}
    assert len(SOURCE.read_text().splitlines()) < 100


@pytest.fixture(scope="module")
def climbed(tmp_path_factory):
    """A run of two stages, climbed once for all that is asked of it."""
    with climb(tmp_path_factory.mktemp("foreign")) as run:
        yield run


@pytest.fixture(scope="module")
def silent(tmp_path_factory):
    """The same by a trainer that records no checkpoints and no held-out loss at its hand-over, but has two commands."""
    program = EXPERIMENT["trainer"]["command"][:2]
    commands = {
        "evaluate": [*program, "evaluate", "{checkpoint}"],
        "checkpoints": [*program, "checkpoints", "{stage_dir}"],
        "capabilities": ["resume", "save_at", "held_out", "phase", "time", "tokens_per_gpu_second"],
        "settings": {"silent": True},
    }
    with climb(tmp_path_factory.mktemp("silent"), trainer={**EXPERIMENT["trainer"], **commands}) as run:
        yield run


@contextmanager
def climb(folder, **changes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCALEUP_HOME", str(folder / "home"))
        patch.setenv("SCALEUP_CONFIGS", str(folder / "configs"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        configs = Configs(folder / "configs")
        configs.cluster()
        stages = configs.stages()
        stages[1]["gates"] = GATES
        configs.experiment(stages=stages, **changes)
        assert main(["run", "tiny", "--run-id", "run_1", "--plain"]) == 0
        yield RunDir.of("tiny", "run_1")


def test_it_climbs_two_stages_without_a_replay(climbed):
    first, second = ladder_of(climbed).stages
    assert [span.phase for span in second.spans] == ["canary", "train"]
    metrics = read_metrics(climbed.stage("gpus_64").metrics)
    assert metrics.steps["step"].tolist() == list(range(31, 71))
    earlier = read_metrics(climbed.stage("gpus_8").metrics).steps
    handed_over = earlier[earlier["step"] == first.hand_over_step]["tokens"].iloc[0]
    assert metrics.steps["tokens"].iloc[0] == handed_over + second.spans[0].batch_sequences * 8  # nothing counted twice


def test_its_checkpoint_is_handed_over_in_its_own_format(climbed):
    start = Path(read_config(climbed.stage("gpus_64").path).start.checkpoint)
    step, tokens, weight = start.read_text().split()
    assert (int(step), int(tokens)) == (30, 30 * 16 * 8)
    assert start.is_relative_to(climbed.stage("gpus_64").start)
    promoted = read_json(climbed.stage("gpus_8").promotion)["checkpoint"]
    assert manifest.read(start.parent).digest == promoted["manifest_sha256"]
    held_out = read_metrics(climbed.stage("gpus_64").metrics).held_out
    assert held_out["loss"].iloc[0] == (float(weight) - 3.0) ** 2 + 1.0  # the next stage began from exactly that weight


def test_resume_parity_decides_in_the_replay_s_place_and_the_verdict_says_so(climbed):
    checks = {check["gate"]: check for check in read_json(climbed.stage("gpus_64").verdict)["checks"]}
    assert set(checks) >= set(GATES)
    assert {check["outcome"] for check in checks.values()} == {"PASS"}
    said = "- Replay: none: the trainer foreign cannot replay, so resume_parity decides in its place"
    assert said in climbed.stage("gpus_64").report_md.read_text().splitlines()


def test_without_rows_its_own_commands_find_the_hand_over_and_say_what_it_loses(silent):
    first = silent.stage("gpus_8")
    metrics = read_metrics(first.metrics)
    assert metrics.checkpoints.empty and 30 not in metrics.held_out["step"].tolist()
    kept = read_json(first.promotion)["checkpoint"]
    (state,) = (silent.stage("gpus_64").start / "step_00000030").glob("*.state")
    weight = float(state.read_text().split()[2])
    assert (kept["step"], kept["evaluated"]) == (30, {"loss": (weight - 3.0) ** 2 + 1.0, "sequences": 1})
    checks = {check["gate"]: check for check in read_json(silent.stage("gpus_64").verdict)["checks"]}
    assert checks["resume_parity"]["outcome"] == "PASS"
    assert checks["resume_parity"]["estimate"] == 0.0  # the very weights that were evaluated


def test_a_gate_that_it_cannot_feed_is_named_before_it_starts(configs):
    stages = configs.stages()
    stages[1]["gates"] = {"replay_parity": {}}
    configs.experiment(stages=stages)
    with pytest.raises(ConfigInvalid, match="replay_parity"):
        from tasks.config import load_experiment

        load_experiment("tiny")
