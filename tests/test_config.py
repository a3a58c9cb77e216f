"""Loading: what the shipped files say, ``extends``, numbers as people write them, foreign trainers, clusters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from config_texts import CLUSTER, EXPERIMENT
from pydantic import ValidationError

from tasks import config
from tasks.config import files as config_files
from tasks.config.as_trained import as_trained
from tasks.errors import ConfigInvalid
from tasks.gates import REGISTRY
from training.config import OPTIONAL

SHIPPED = config.experiments()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a configuration with the experiment ``x`` on the cluster ``c``."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "clusters").mkdir()
    (tmp_path / "experiments" / "x.yaml").write_text(EXPERIMENT)
    (tmp_path / "clusters" / "c.yaml").write_text(CLUSTER)
    monkeypatch.setenv("SCALEUP_CONFIGS", str(tmp_path))
    return tmp_path


def changed(folder: Path, *changes: tuple[str, str], name: str = "x") -> config.Experiment:
    """Load the experiment with parts of its text replaced."""
    text = EXPERIMENT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (folder / "experiments" / f"{name}.yaml").write_text(text)
    return config.load_experiment(name)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_experiment_loads_with_its_gates_and_says_what_it_is(name: str) -> None:
    experiment = config.load_experiment(name)
    assert experiment.name == name
    assert experiment.description
    assert [stage.gpus for stage in experiment.stages] == [8, 64, 1000]


@pytest.mark.parametrize("name", config.clusters())
def test_every_shipped_cluster_loads(name: str) -> None:
    assert config.load_cluster(name).name == name


def test_the_experiments_that_the_readme_names_are_shipped() -> None:
    assert {"gpt_stdlib", "gpt_stdlib_1m", "gpt_stdlib_weak_network"} <= set(SHIPPED)


def test_the_weak_network_experiment_differs_in_its_cluster_alone() -> None:
    good, weak = (config.load_experiment(n) for n in ("gpt_stdlib", "gpt_stdlib_weak_network"))
    same = {"name": "", "description": "", "cluster": ""}
    assert good.model_copy(update=same) == weak.model_copy(update=same)
    assert (good.cluster, weak.cluster) == ("laptop", "laptop_weak_network")
    assert config.load_cluster("laptop").noise == config.load_cluster("laptop_weak_network").noise


def test_sizes_of_the_models_are_what_their_comments_say() -> None:
    def sizes(name: str) -> list[int]:
        experiment = config.load_experiment(name)
        return [as_trained(experiment, 0, emulated).recipe.model.shape.parameters for emulated in (False, True)]

    real, small = sizes("gpt_stdlib")
    assert real == pytest.approx(6.6e9, rel=0.01)
    assert small == pytest.approx(0.12e6, rel=0.05)
    assert sizes("gpt_stdlib_1m") == [real, pytest.approx(1.03e6, rel=0.01)]


def test_all_stages_of_the_real_recipe_give_a_gpu_the_same_batch() -> None:
    experiment = config.load_experiment("gpt_stdlib")
    assert {stage.batches[-1].sequences / stage.gpus for stage in experiment.stages} == {4.0}


def test_the_last_stage_answers_to_the_first_as_well() -> None:
    asked = config.load_experiment("gpt_stdlib").stages[2].asked
    assert asked["scaling_efficiency"]["reference"] == "gpus_64"
    assert asked["scaling_efficiency.gpus_8"]["reference"] == "gpus_8"


def test_extending_merges_mappings_and_replaces_lists(folder: Path) -> None:
    (folder / "experiments" / "y.yaml").write_text("extends: x\nseed: 9\ntrain: {model: {layers: 20}}\n")
    x, y = config.load_experiment("x"), config.load_experiment("y")
    assert (y.name, y.seed) == ("y", 9)
    assert y.train.model == x.train.model.model_copy(update={"layers": 20})
    assert y.stages == x.stages
    one = EXPERIMENT[EXPERIMENT.index("stages:") : EXPERIMENT.index("  - gpus: 64")]
    (folder / "experiments" / "z.yaml").write_text("extends: y\n" + one)
    z = config.load_experiment("z")
    assert (z.seed, z.train, len(z.stages)) == (9, y.train, 1)


def test_deep_merge_leaves_both_alone() -> None:
    base, over = {"a": {"b": 1, "c": [1, 2]}}, {"a": {"c": [3]}, "d": None}
    assert config_files.deep_merge(base, over) == {"a": {"b": 1, "c": [3]}, "d": None}
    assert base == {"a": {"b": 1, "c": [1, 2]}}


@pytest.mark.parametrize("written", ["3e-4", "3.0e-4", "0.0003", "3E-4", "+3e-4"])
def test_a_learning_rate_is_a_number_however_it_is_written(folder: Path, written: str) -> None:
    assert changed(folder, ("3.0e-4", written)).stages[0].learning_rate == 0.0003


@pytest.mark.parametrize("written", ["5e5", "5.0e+5", "500000", "500_000", "500000.0"])
def test_tokens_are_a_whole_number_however_they_are_written(folder: Path, written: str) -> None:
    assert changed(folder, ("500_000", written)).stages[1].tokens == 500_000


@pytest.mark.parametrize("word", ["1e", "e5", "0x1e5g", "v1e5", "1e5-2"])
def test_words_that_only_begin_like_numbers_stay_text(folder: Path, word: str) -> None:
    assert changed(folder, ("seed: 1", f"seed: 1\nowner: {word}")).owner == word


def test_a_path_loads_as_a_name_does(folder: Path) -> None:
    assert config.load_experiment(folder / "experiments" / "x.yaml") == config.load_experiment("x")


def test_loaded_values_do_not_change() -> None:
    experiment = config.load_experiment("gpt_stdlib", gates=False)
    with pytest.raises(ValidationError, match="frozen"):
        experiment.seed = 2  # type: ignore[misc]


def test_a_rehearsal_is_laid_over_stage_and_recipe(folder: Path) -> None:
    stage = "    tokens: 500_000\n    rehearsal: {steps: 30, batch_sequences: 16, model: {layers: 4}, precision: fp16}"
    experiment = changed(
        folder,
        ("  processes: 2", "  processes: 2\n  precision: float32\n  canary_steps: 5\n  hours: 0.25"),
        ("    tokens: 500_000", stage),
    )
    real, rehearsed = (as_trained(experiment, 1, emulated) for emulated in (False, True))
    assert (real.stage.steps, real.stage.tokens, real.stage.batch_sequences) == (None, 500_000, 128)
    assert (rehearsed.stage.steps, rehearsed.stage.tokens, rehearsed.stage.batch_sequences) == (30, None, 16)
    assert (real.recipe.model.layers, rehearsed.recipe.model.layers) == (40, 4)
    assert rehearsed.recipe.model.hidden == real.recipe.model.hidden
    assert (real.recipe.precision, rehearsed.recipe.precision) == ("bf16", "fp16")
    assert (real.canary_steps, rehearsed.canary_steps) == (10, 5)
    assert (real.stage.hours, rehearsed.stage.hours) == (2, 0.25)
    assert as_trained(experiment, 0, True).recipe.precision == "float32"


def test_a_rehearsal_is_data_parallel_unless_it_says_otherwise(folder: Path) -> None:
    layout = ("  sequence_length: 32", "  sequence_length: 32\n  layout: {tensor: 2, shard: 4}")
    plain = changed(folder, layout)
    assert as_trained(plain, 0, False).recipe.layout == config.Layout(tensor=2, shard=4)
    assert as_trained(plain, 0, True).recipe.layout == config.Layout()
    said = changed(folder, layout, ("  processes: 2", "  layout: {shard: 2}"))
    assert as_trained(said, 0, True).recipe.layout == config.Layout(shard=2)


def test_a_rehearsal_may_change_thresholds(folder: Path) -> None:
    over = "    tokens: 500_000\n    rehearsal: {gates: {scaling_efficiency: {at_least: 0.5}, replay_parity: dropped}}"
    experiment = changed(folder, ("    tokens: 500_000", over))
    rehearsed = as_trained(experiment, 1, True).stage
    assert rehearsed.asked == {"scaling_efficiency": {"reference": "gpus_8", "at_least": 0.5}}
    assert rehearsed.dropped == ("replay_parity",)
    assert as_trained(experiment, 1, False).stage.asked["scaling_efficiency"]["at_least"] == 0.8


def test_our_trainer_can_feed_every_gate() -> None:
    assert {name for gate in REGISTRY.values() for name in gate.needs if not config.Trainer().can(name)} == set()


FOREIGN = "seed: 1\ntrainer: {name: mine, command: [python, train.py, '{stage_dir}'], capabilities: [resume, held_out]}"


def test_a_foreign_trainer_promises_nothing_that_it_does_not_say(folder: Path) -> None:
    experiment = changed(folder, ("seed: 1", FOREIGN), ("      replay_parity:\n", "      replay_parity: dropped\n"))
    trainer = experiment.trainer
    assert (trainer.name, trainer.command, trainer.evaluate) == ("mine", ("python", "train.py", "{stage_dir}"), None)
    assert not any(trainer.can(name) for name in ("replay", "evaluate", *OPTIONAL))
    assert all(trainer.can(name) for name in ("resume", "held_out", "step", "loss", "step_seconds"))


def test_a_gate_that_a_foreign_trainer_cannot_feed_must_be_dropped_by_name(folder: Path) -> None:
    with pytest.raises(ConfigInvalid, match="the trainer 'mine' lacks; write replay_parity: dropped"):
        changed(folder, ("seed: 1", FOREIGN))
    dropped = changed(folder, ("seed: 1", FOREIGN), ("      replay_parity:\n", "      replay_parity: dropped\n"))
    assert dropped.stages[1].dropped == ("replay_parity",)
    assert "replay_parity" not in dropped.stages[1].asked


def test_gates_are_not_looked_at_where_a_dag_is_parsed(folder: Path) -> None:
    (folder / "experiments" / "x.yaml").write_text(EXPERIMENT.replace("replay_parity", "replay_parrot"))
    assert "replay_parrot" in config.load_experiment("x", gates=False).stages[1].gates
    with pytest.raises(ConfigInvalid, match="did you mean replay_parity"):
        config.load_experiment("x")


def test_parsing_needs_no_frames_no_statistics_and_no_tensors() -> None:
    program = (
        "import sys; from tasks import config, plan\n"
        "for name in config.experiments(): plan.table(plan.resolve(config.load_experiment(name, gates=False)))\n"
        "print(sorted({'pandas', 'numpy', 'scipy', 'torch', 'mlflow', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_are_listed_without_reading_the_files(folder: Path) -> None:
    (folder / "experiments" / "broken.yaml").write_text("{")
    assert config.experiments() == ["broken", "x"]
    assert config.clusters() == ["c"]


def test_one_broken_sibling_stops_no_other(folder: Path) -> None:
    (folder / "experiments" / "broken.yaml").write_text("{")
    assert config.load_experiment("x").name == "x"


@pytest.mark.parametrize(("gpus", "tier"), [(1, 0), (8, 0), (16, 1), (64, 1), (72, 2), (1024, 2)])
def test_a_job_spans_the_tiers_that_its_gpus_need(folder: Path, gpus: int, tier: int) -> None:
    assert config.load_cluster("c").tier(gpus) == tier


def test_a_cluster_of_real_gpus_needs_no_model_of_them(folder: Path) -> None:
    (folder / "clusters" / "h100.yaml").write_text("launcher: {kind: local}\ngpus_per_node: 8\nnodes: 2\n")
    cluster = config.load_cluster("h100")
    assert (cluster.emulated, cluster.network, cluster.tier(8), cluster.tier(16)) == (False, None, 0, 1)


def test_a_store_is_inside_the_home_unless_it_is_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEUP_HOME", str(folder / "home"))
    assert config.load_cluster("c").store.root == folder / "home" / "store"
    (folder / "clusters" / "c.yaml").write_text(CLUSTER + f"store: {{path: {folder}/kept}}\n")
    assert config.load_cluster("c").store.root == folder / "kept"


def test_secrets_come_from_a_file_that_only_its_owner_reads(folder: Path) -> None:
    secrets = folder / "secrets.env"
    secrets.touch(mode=0o600)
    (folder / "clusters" / "c.yaml").write_text(
        CLUSTER + f"environment: {{kind: none, secrets: {{file: {secrets}, names: [WANDB_API_KEY]}}}}\n"
    )
    loaded = config.load_cluster("c").environment.secrets
    assert loaded is not None
    assert loaded.names == ("WANDB_API_KEY",)
    os.chmod(secrets, 0o640)
    with pytest.raises(ConfigInvalid) as raised:
        config.load_cluster("c")
    assert f"environment.secrets.file: '{secrets}' has mode 0640, so others may read it; `chmod 600` it" in str(
        raised.value
    )
    secrets.unlink()
    with pytest.raises(ConfigInvalid, match="does not exist; write NAME=value lines into it and `chmod 600` it"):
        config.load_cluster("c")
