"""A home, a configuration and a run of their own for each test, with a trainer that takes no time."""

import sys
from pathlib import Path

import pytest
import yaml
from launching import job, launcher  # noqa: F401  # fixtures
from running import steps, until
from slurm import slurm  # noqa: F401  # fixture

from tasks.launch import job_of, launch, launcher_of
from tasks.launchers.processes import marked
from tasks.run import open_run, plan_of, runs
from tasks.stage_dir import StageDir, write_json

FOREIGN_TRAINER = Path(__file__).parent / "foreign_trainer.py"

CLUSTER = {
    "launcher": {"kind": "local"},
    "gpus_per_node": 8,
    "nodes": 8,
    "emulated": True,
    "flops_per_gpu": 4.0e14,
    "memory_gib_per_gpu": 80,
    "network": {
        "inside_node": {"latency_us": 5, "gbytes_per_second": 450},
        "between_nodes": {"latency_us": 10, "gbytes_per_second": 50},
        "overlap": 0.7,
    },
    "poll_seconds": 0.1,
}

EXPERIMENT = {
    "description": "One number descends to 3, on one node and on eight",
    "cluster": "here",
    "trainer": {
        "name": "foreign",
        "command": [sys.executable, str(FOREIGN_TRAINER), "{stage_dir}"],
        "capabilities": ["resume", "save_at", "checkpoints", "held_out", "phase", "time", "tokens_per_gpu_second"],
    },
    "seed": 7,
    "hand_over_steps": 10,
    "canary_steps": 10,
    "train": {
        "model": {"layers": 1, "hidden": 8, "heads": 1, "ffn": 8, "vocabulary": 16},
        "sequence_length": 8,
        "precision": "float32",
        "checkpointing": {"every_steps": 5},
    },
    "stages": [
        {
            "gpus": 8,
            "hours": 1,
            "steps": 40,
            "batch_sequences": 16,
            "learning_rate": 0.002,
            "gates": {"finite_loss": {}},
        },
        {
            "gpus": 64,
            "hours": 1,
            "steps": 40,
            "batch_sequences": 64,
            "learning_rate": 0.002,
            "gates": {"finite_loss": {}},
        },
    ],
}


class Configs:
    """The folder of configuration files; tests change the two mappings and write them."""

    def __init__(self, root):
        self.root = root

    def experiment(self, name="tiny", **changes):
        """Write an experiment; ``settings`` go to its trainer."""
        settings = changes.pop("settings", {})
        trainer = {**EXPERIMENT["trainer"], "settings": settings}
        self._write("experiments", name, {**EXPERIMENT, "trainer": trainer, **changes})
        return name

    def stages(self):
        """Return the two stages, to be changed."""
        return [dict(stage) for stage in EXPERIMENT["stages"]]

    def cluster(self, name="here", **changes):
        self._write("clusters", name, {**CLUSTER, **changes})
        return name

    def _write(self, folder, name, value):
        path = self.root / folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(value, sort_keys=False))


@pytest.fixture
def scaleup_home(tmp_path, monkeypatch):
    """A home of its own; whatever still runs in it at the end is ended."""
    home = tmp_path / "home"
    monkeypatch.setenv("SCALEUP_HOME", str(home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    yield home
    for run in list(runs()):
        for path in run.path.glob("*/job.json"):
            end_job_of(StageDir(path.parent))


def end_job_of(stage):
    """End a stage's job and see that nothing of any attempt is left."""
    newest = job_of(stage)
    launcher_of(plan_of(stage)).cancel(newest, "the test is over")
    for attempt in range(1, newest.attempt + 1):
        assert marked(newest.name.replace(f".{newest.attempt}.", f".{attempt}.")) == []


@pytest.fixture
def configs(tmp_path, monkeypatch, scaleup_home):
    """A temporary configuration with the experiment ``tiny`` on the cluster ``here``."""
    root = tmp_path / "configs"
    monkeypatch.setenv("SCALEUP_CONFIGS", str(root))
    made = Configs(root)
    made.cluster()
    made.experiment()
    return made


@pytest.fixture
def begin(configs):
    """Open a run of ``tiny``, changed as the test wants; return its first stage, its forecast granted."""

    def open_it(run_id="run_1", *, settings=None, **changes):
        configs.experiment(settings=settings or {}, **changes)
        run = open_run("tiny", run_id=run_id, origin={"by": "a test"})
        stage = run.stage("gpus_8")
        write_json(stage.forecast, {"outcome": "PASS", "checks": []})
        return stage

    return open_it


@pytest.fixture
def gate_file(tmp_path):
    """A file for which the foreign trainer waits before step 20, and the settings that make it wait."""
    path = tmp_path / "go_on"
    return path, {"wait_at": 20, "wait_for": str(path)}


@pytest.fixture
def running(begin, gate_file):
    """A stage whose trainer waits before step 20 until the file is there."""

    def start(**changes):
        stage = begin(settings=gate_file[1], **changes)
        launch(stage)
        until(lambda: 19 in steps(stage))
        return stage

    return start
