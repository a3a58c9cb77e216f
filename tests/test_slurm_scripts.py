"""What Slurm is given, word for word, for each kind of environment; and that nothing secret is ever in it."""

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import pytest
from conftest import FOREIGN_TRAINER
from launching import end_of, printed, programs
from running import steps, until

from tasks.config.launchers import Nccl
from tasks.launch import job_of, launch, launcher_of
from tasks.launchers import Job
from tasks.launchers.slurm import SlurmLauncher, script
from tasks.run import plan_of
from tasks.stage_dir import read_json

GOLDEN = Path(__file__).parent / "slurm_scripts"
IMAGE = "nvcr.io/nvidia/pytorch@sha256:" + "0" * 64
JOB = Job(
    name="gpt.run_1.gpus_64.1.0a1b2c3d", attempt=1, command=("python", "-m", "training.train", "/runs/it's/gpus_64"),
    nodes=8, gpus_per_node=8, hours=6.0, folder="/runs/it's/gpus_64/attempt_1",
    metrics="/runs/it's/gpus_64/metrics.jsonl", checkpoints="/runs/it's/gpus_64/checkpoints",
    cwd="/runs/it's/code/repo",
    variables={"OMP_NUM_THREADS": "8"}, setup=("ulimit -n 65536",), venv="/opt/venv", sigusr1=True,
    secrets=("TOKEN", "KEY"), secrets_file="/home/mo/secrets", before_nodes=(2,), code="/runs/it's/code/repo",
    before=(("python", "-m", "training.train", "/runs/it's/gpus_64/probes/gpus_16"),), modules=("cuda/12.4",),
)  # fmt: skip
SITE = SlurmLauncher(
    partition="gpu", account="llm", qos="high", reservation="scale", constraint="h100&ib",
    options=("--gres-flags=enforce-binding", "--mail-user=mo@x"), srun_options=("--network=devnet",), segment_hours=4.0,
    network=Nccl(
        interfaces="eth0", hcas="=mlx5_0,mlx5_1", gid_index=3, traffic_class=106, ib_timeout=22, ib_retries=7
    ).variables(),
)  # fmt: skip
KINDS = {
    "venv": JOB,
    "pyxis": replace(JOB, venv=None, container="pyxis", image=IMAGE, mounts=("/data:/data:ro", "/runs:/runs")),
    "apptainer": replace(JOB, venv=None, container="apptainer", image=IMAGE, mounts=("/data:/data:ro", "/runs:/runs")),
}


def heads(job):
    """Return both scripts without the bodies that all jobs share."""
    said = []
    bodies = {"batch.sh": ("clock.sh", "batch.sh"), "node.sh": ("node.sh",)}
    for text, name in ((script.batch_script(SITE, job), "batch.sh"), (script.node_script(SITE, job), "node.sh")):
        body = "".join((Path(script.__file__).parent / part).read_text() for part in bodies[name])
        assert text.endswith("\n" + body) and text.count(body) == 1
        said.append(f"==> {name}\n{text.removesuffix(body)}")
    return "".join(said)


@pytest.mark.parametrize("kind", KINDS)
def test_the_scripts_of_each_kind_word_for_word(kind):
    assert heads(KINDS[kind]) == (GOLDEN / f"{kind}.txt").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_bash_takes_every_script(kind):
    for text in (script.batch_script(SITE, KINDS[kind]), script.node_script(SITE, KINDS[kind])):
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_site_s_own_options_come_last_so_that_they_have_the_last_word():
    options = [line for line in script.batch_script(SITE, JOB).splitlines() if line.startswith("#SBATCH")]
    assert options[-2:] == ["#SBATCH --gres-flags=enforce-binding", "#SBATCH --mail-user=mo@x"]


def test_a_planted_secret_reaches_the_job_and_nothing_that_is_written(begin, configs, slurm, tmp_path, monkeypatch):
    drawn = token_hex(16)  # found nowhere by chance
    value = f"pl@nted \"'$HOME {drawn}"
    file = tmp_path / "secrets"
    file.write_text(f"# mine\nexport TOKEN={value}\nOTHER=not asked for\n")
    file.chmod(0o600)
    monkeypatch.setenv("PIPELINES_OWN", value)  # as an orchestrator's passwords are in its own environment
    told = tmp_path / "told"
    around = {
        "variables": {"COLOUR": "blue"},
        "setup": [f'printf %s "$COLOUR ${{#TOKEN}} ${{OTHER-none}} ${{PIPELINES_OWN-none}}" > {told}'],
        "secrets": {"file": str(file), "names": ["TOKEN"]},
    }
    configs.cluster(launcher={"kind": "slurm", "start": "command", "real_nodes": 1}, environment=around)
    stage = begin()
    job = launch(stage)
    state = end_of(launcher_of(plan_of(stage)), job)
    assert state.state == "succeeded", printed(job)
    assert told.read_text() == f"blue {len(value)} none none"
    written = [path for path in stage.run.path.rglob("*") if path.is_file()]
    kept = [path for path in (slurm.folder / "state").rglob("*") if path.is_file()]  # what slurmctld saved of the job
    spool = [path for path in (slurm.folder / "spool").rglob("*") if path.is_file()]
    assert {"batch.sh", "node.sh", "config.json", "job.json"} <= {path.name for path in written} and kept
    assert not [path for path in [*written, *kept, *spool] if holds(path, drawn.encode())]
    assert drawn not in slurm.ask("scontrol", "show", "job", read_json(stage.attempt(1) / "slurm.json")["id"])


def holds(path, secret):
    """Whether a file holds the secret; one that Slurm tidied away between our two looks is gone."""
    try:
        return secret in path.read_bytes()
    except FileNotFoundError:
        return False


def test_the_run_s_code_is_that_of_its_first_launch(begin, configs, slurm, tmp_path):
    repository = tmp_path  # the folder that holds configs/
    trainer = repository / "trainer.py"
    trainer.write_text(FOREIGN_TRAINER.read_text())
    subprocess.run(["git", "init", "-q", repository], check=True)
    (repository / ".gitignore").write_text("home/\n")
    configs.cluster(launcher={"kind": "slurm", "start": "command", "real_nodes": 1})
    own = {"command": ["python", "trainer.py", "{stage_dir}"], "capabilities": ["save_at", "checkpoints", "resume"]}
    waits = {"wait_at": 20, "wait_for": str(tmp_path / "home" / "go_on")}
    stage = begin(trainer={"name": "own", **own, "settings": waits})
    job = launch(stage)
    until(lambda: 19 in steps(stage))
    trainer.write_text("raise SystemExit('day 5')")
    for process in programs(job):
        os.kill(process["pid"], signal.SIGKILL)
    (tmp_path / "home" / "go_on").touch()
    state = end_of(launcher_of(plan_of(stage)), job)
    assert (state.state, state.restarts) == ("succeeded", 1), printed(job)
    said = read_json(stage.run.path / "code" / repository.name / ".snapshot.json")
    assert said["from"] == str(repository) and "?? trainer.py" in said["changed"]
    assert Path(job.cwd).parent == stage.run.path / "code" and "day 5" not in printed(job)
    stand_ins = [read_json(path)["runs"] for path in (stage.attempt(1) / "nodes").iterdir()]
    assert set(stand_ins) == {"command"} and job_of(stage) == job


def test_what_the_network_needs_is_said_once_in_the_cluster_file():
    said = Nccl(traffic_class=106, gid_index=3, hcas="=mlx5_0").variables()
    assert said["NCCL_IB_TC"] == "106" and said["NCCL_IB_GID_INDEX"] == "3" and said["NCCL_IB_HCA"] == "=mlx5_0"
    assert not [name for name in said if name.endswith("ASYNC_ERROR_HANDLING")]  # torch's own default
    assert Nccl(flight_recorder=0).variables()["TORCH_FR_BUFFER_SIZE"] == "0"
