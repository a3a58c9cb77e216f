"""What Slurm is given: a batch script for the first node, and what each node runs. Nothing secret is in either.

Each is a head with the job's own values, and a body that is the same for all jobs (``clock.sh`` and ``batch.sh``;
``node.sh``): copied, so that a job that is started again on day 5 runs day 1's script.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from tasks.launchers import Job
from tasks.launchers.processes import MARK
from tasks.launchers.slurm import nodes as node_memory
from tasks.launchers.slurm.site import Site

BATCH_SCRIPT, NODE_SCRIPT = "batch.sh", "node.sh"
_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[2]
_BATCH_BODY = (_HERE / "clock.sh").read_text() + (_HERE / BATCH_SCRIPT).read_text()
_NODE_BODY = (_HERE / NODE_SCRIPT).read_text()

# A lost node is noticed after 3 s without a sign of life, and those that are left wait 1 s for a late one, not 15 s and
# 30 s as by torchrun's defaults. Whole seconds only.
_RENDEZVOUS = "join_timeout=600,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
_MARGIN_SECONDS = 120  # of Slurm's limit beyond the job's hours, which the script keeps itself


def batch_script(site: Site, job: Job) -> str:
    """Return the script that sbatch takes."""
    return "\n".join([
        "#!/bin/bash",
        f"# Job {job.name}, written by scaleup.",
        *[f"#SBATCH {_quoted(option)}" for option in _options(site, job)],
        "",
        *_values(site, job),
        *_modules(job.modules),
        "",
        _BATCH_BODY,
    ])  # fmt: skip


def node_script(site: Site, job: Job) -> str:
    """Return the script that srun runs once a node."""
    values = {
        "folder": job.folder, "attempt": job.attempt, "cwd": job.cwd, "saves": int(job.sigusr1), "start": site.start,
        "real_nodes": site.real_nodes or 0, "processes": site.processes_per_node or job.gpus_per_node,
        "rendezvous": _RENDEZVOUS,
    }  # fmt: skip
    return "\n".join([
        "#!/bin/bash",
        f"# What each node of job {job.name} runs, written by scaleup.",
        *[f"{name}={_quoted(value)}" for name, value in values.items()],
        f"python=({_quoted(_python(job))})",
        f"command=({_words(job.command)})",
        *[f"first_{number}=({_words(command)})" for number, command in enumerate(job.before)],
        "",
        "around() {",
        *[f"export {name}={_quoted(value)}" for name, value in _variables(site, job).items()],
        *_path(job),
        *_secrets(job),
        *job.setup,
        "}",
        "",
        _NODE_BODY,
    ])  # fmt: skip


def _options(site: Site, job: Job) -> list[str]:
    """Return sbatch's options: ours first, so that a site's own, which are passed through, have the last word."""
    hours = job.hours if site.segment_hours is None else min(job.hours, site.segment_hours)
    margin = _MARGIN_SECONDS if site.segment_hours is None or job.hours < site.segment_hours else 0
    named = {
        "partition": site.partition, "account": site.account, "qos": site.qos, "reservation": site.reservation,
        "constraint": site.constraint,
    }  # fmt: skip
    bad = node_memory.bad(site)
    return [
        f"--job-name={job.name}",
        f"--comment={job.name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={job.gpus_per_node}",
        *(["--exclusive", "--mem=0"] if site.exclusive else []),
        f"--time={math.ceil((hours * 3600 + margin) / 60)}",
        f"--signal=B:USR1@{math.ceil(site.save_seconds)}",
        f"--output={job.log}",
        "--open-mode=append",
        f"--chdir={job.folder}",
        "--requeue" if site.requeue else "--no-requeue",
        "--dependency=singleton",
        *[f"--{name}={value}" for name, value in named.items() if value is not None],
        *([f"--exclude={node_memory.shorten(bad)}"] if bad else []),
        *site.options,
    ]


def _values(site: Site, job: Job) -> list[str]:
    """Return the batch script's own values as assignments."""
    segment = 0 if site.segment_hours is None or site.segment_hours >= job.hours else site.segment_hours * 3600
    values = {
        "name": job.name, "folder": job.folder, "metrics": job.metrics, "checkpoints": job.checkpoints,
        "nodes": job.nodes, "hours_seconds": math.ceil(job.hours * 3600), "segment_seconds": math.ceil(segment),
        "first_seconds": math.ceil(job.before_hours * 3600), "save_seconds": math.ceil(site.save_seconds),
        "grace_seconds": math.ceil(site.grace_seconds), "saves": int(job.sigusr1), "restarts": site.restarts,
        "max_restarts": site.max_restarts, "port": site.port,
    }  # fmt: skip
    first_nodes = job.before_nodes or (job.nodes,) * len(job.before)
    # No binding: one task a node is torchrun, whose ranks use all of its cores.
    srun = ("srun", "--quiet", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "--cpu-bind=none", *site.srun_options)
    return [
        *[f"{name}={_quoted(value)}" for name, value in values.items()],
        f"first_nodes=({_words(str(number) for number in first_nodes)})",
        f"srun=({_words(srun)})",
        f"contained=({_words(_container(job))})",
    ]


def _container(job: Job) -> list[str]:
    """Return the words between srun and the node's script that put it into the job's image."""
    mounts = list(job.mounts)
    if job.secrets_file and job.secrets:
        mounts.append(f"{job.secrets_file}:{job.secrets_file}:ro")
    if job.container == "pyxis":
        registry, slash, rest = (job.image or "").partition("/")
        image = f"{registry}#{rest}" if slash and ("." in registry or ":" in registry) else job.image
        return [f"--container-image={image}", f"--container-mounts={','.join(mounts)}", "--no-container-mount-home"]
    if job.container == "apptainer":
        return ["apptainer", "exec", "--nv", "--no-home", f"--bind={','.join(mounts)}", f"docker://{job.image}"]
    return []


def _python(job: Job) -> str:
    """Return the interpreter that runs torchrun: the image's, the virtual environment's, or this one's."""
    return "python" if job.image or job.venv else sys.executable


def _path(job: Job) -> list[str]:
    if job.image:
        return []
    binaries = Path(job.venv or sys.prefix).expanduser() / "bin"
    venv = [f"export VIRTUAL_ENV={_quoted(binaries.parent)}"] if job.venv else []
    return [f"export PATH={_quoted(binaries)}:$PATH", *venv]


def _variables(site: Site, job: Job) -> dict[str, str]:
    """Return what a job's environment has beside the node's; a person's own variables have the last word."""
    recorder = {"TORCH_FR_DUMP_TEMP_FILE": f"{job.folder}/flight_recorder_"}
    return {
        MARK: job.name,
        "PYTHONPATH": job.code or str(_ROOT),
        "PYTHONUNBUFFERED": "1",
        **site.network,
        **(recorder if site.network.get("TORCH_FR_BUFFER_SIZE", "0") != "0" else {}),
        **job.variables,
    }


def _modules(modules: tuple[str, ...]) -> list[str]:
    if not modules:
        return []
    return [
        "for init in /etc/profile.d/lmod.sh /etc/profile.d/modules.sh /usr/share/lmod/lmod/init/bash; do",
        '  [ "$(type -t module)" = function ] || [ ! -r "$init" ] || . "$init"',
        "done",
        f"module load {_words(modules)} || exit 1",
    ]


def _secrets(job: Job) -> list[str]:
    """Return lines that read the secrets that are named from their file, on the node; values stand nowhere else."""
    if not job.secrets or job.secrets_file is None:
        return []
    file = _quoted(Path(job.secrets_file).expanduser())
    return [
        f'if [ -n "$(find {file} -maxdepth 0 -perm /077)" ]; then',
        f"  echo {file} may be read by others >&2",
        "  exit 1",
        "fi",
        'while IFS= read -r line || [ -n "$line" ]; do',
        '  line=${line#"${line%%[![:space:]]*}"} line=${line#export }',
        "  value=${line#*=} value=${value#[\\\"\\']} value=${value%[\\\"\\']}",
        f'  case ${{line%%=*}} in {"|".join(job.secrets)}) export "${{line%%=*}}=$value" ;; esac',
        f"done < {file}",
        "unset line value",
    ]


def _words(words: Iterable[object]) -> str:
    return " ".join(map(_quoted, words))


def _quoted(value: object) -> str:
    return shlex.quote(str(value))
