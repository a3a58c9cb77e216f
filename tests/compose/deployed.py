"""docker-compose.yml as deployed for a test: a copy of the tree with secrets of its own, and who asks what of it."""

import base64
import json
import re
import shutil
import subprocess
import time
from functools import partial

import boto3
import yaml
from botocore.config import Config
from running import ROOT

from tasks.services import ports
from tasks.services.airflow_api import AirflowApi, AirflowUnreachable, fetch
from tasks.stage_dir import write_whole

SERVICES = ("postgres", "store", "mlflow", "api-server", "dag-processor", "triggerer", "scheduler")
TREE = (
    "Dockerfile", ".dockerignore", "docker-compose.yml", ".env.example", "pyproject.toml", "constraints.txt", "configs",
    "dags", "deploy", "tasks", "training",
)  # fmt: skip
STAGES = ({"gpus": 8, "sequences": 32}, {"gpus": 64, "sequences": 64}, {"gpus": 1000, "sequences": 1000})
QUICK = {
    "description": "The ladder in a minute",
    "cluster": "laptop",
    "trainer": "scaleup",
    "seed": 1,
    "hand_over_steps": 10,
    "canary_steps": 10,
    "train": {
        "model": {"layers": 1, "hidden": 16, "heads": 2, "ffn": 32, "vocabulary": 256},
        "sequence_length": 16,
        "precision": "float32",
        "data": "stdlib",
        "checkpointing": {"every_steps": 5},
    },
    "rehearsal": {"processes": 1, "steps": 40, "hours": 0.5, "held_out": {"sequences": 64}},
    "stages": [
        {
            "gpus": stage["gpus"],
            "hours": 1,
            "steps": 40,
            "batch_sequences": stage["sequences"],
            "learning_rate": 1.0e-3,
            "gates": {"finite_loss": {}, **({"resume_parity": {}} if stage["gpus"] > 8 else {})},
        }
        for stage in STAGES
    ],
}


def copy_tree(target):
    """Copy what an image is built of, with a secret planted where `make secrets` puts them: none may get into it."""
    target.mkdir()
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target / name)
    write_whole(target / "configs" / "experiments" / "quick.yaml", yaml.safe_dump(QUICK))
    return target


class Deployed:
    """The services of one project in one engine."""

    def __init__(self, engine, tree):
        self.engine, self.tree = engine, tree
        self.airflow_port, self.mlflow_port = ports.free_port(), ports.free_port()
        self.project = "scaleup-test"
        self.make("secrets")
        text = (tree / ".env").read_text()
        for name, value in {
            "COMPOSE_PROJECT_NAME": self.project,
            "AIRFLOW_PORT": self.airflow_port,
            "MLFLOW_PORT": self.mlflow_port,
        }.items():
            text, found = re.subn(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
            assert found == 1
        (tree / ".env").write_text(text)

    def make(self, *arguments, check=True):
        """Do what `make` does with these words; return the outcome."""
        done = subprocess.run(
            [self.tree / "deploy" / "compose.sh", *map(str, arguments)],
            env=self.engine.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert not check or done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout[-6000:]}{self.said()}"
        return done

    def said(self):
        """Return the end of every log, for a failure's message."""
        texts = [f"== {name}\n{self.engine('logs', '--tail', '12', name, check=False)}" for name in self.containers()]
        return "\n".join(texts)[-12000:]

    def containers(self):
        """Return the names of all containers, also of those that have ended."""
        mine = f"label=com.docker.compose.project={self.project}"
        return self.engine("ps", "--all", "--filter", mine, "--format", "{{.Names}}").split()

    def container(self, service):
        """Return the name of a service's container."""
        mine = ("--filter", f"label=com.docker.compose.project={self.project}")
        one = ("--filter", f"label=com.docker.compose.service={service}")
        return self.engine("ps", "--all", *mine, *one, "--format", "{{.Names}}").strip()

    def facts(self, service):
        """Return what ``docker inspect`` shows of a service's container."""
        return json.loads(self.engine("inspect", self.container(service)))[0]

    def healthy(self, service):
        """Say whether a service's own health check says so."""
        state = self.facts(service)["State"]
        return state["Status"] == "running" and state["Health"]["Status"] == "healthy"

    def secret(self, name):
        """Return a secret as its owner reads it."""
        return (self.tree / "secrets" / name).read_text().strip()

    def secrets(self):
        """Return every secret word by its name; of the store's credentials both."""
        words = {path.name: path.read_text().strip() for path in (self.tree / "secrets").iterdir()}
        pairs = [line.split(" = ") for line in words.pop("s3_credentials").splitlines()[1:]]
        return {**words, **dict(pairs)}

    def airflow(self, user="operator"):
        """Return Airflow's API as one user sees it."""
        base, word = f"http://127.0.0.1:{self.airflow_port}", self.secret(f"airflow_{user}_password")
        return AirflowApi(base, user, word, timeout=30)

    def mlflow(self, path, body=None, user="admin", word=None):
        """Ask MLflow's API as one user."""
        words = f"{user}:{word or self.secret('mlflow_admin_password')}"
        basic = {"Authorization": "Basic " + base64.b64encode(words.encode()).decode()}
        return fetch_with(f"http://127.0.0.1:{self.mlflow_port}/api/2.0/mlflow/{path}", body, basic)

    def objects(self):
        """Return the keys of all objects in the store by bucket; nobody but the network of the project reaches it."""
        address = next(iter(self.facts("store")["NetworkSettings"]["Networks"].values()))["IPAddress"]
        words = self.secrets()
        client = boto3.client(
            "s3",
            endpoint_url=f"http://{address}:9000",
            aws_access_key_id=words["aws_access_key_id"],
            aws_secret_access_key=words["aws_secret_access_key"],
            region_name="us-east-1",
            config=Config(proxies={}),
        )
        try:
            buckets = [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]
            pages = {name: client.get_paginator("list_objects_v2").paginate(Bucket=name) for name in buckets}
            return {
                name: [o["Key"] for page in found for o in page.get("Contents", [])] for name, found in pages.items()
            }
        finally:
            client.close()

    def run_state(self, run_id):
        """Return how a run of the ladder stands; nothing while the API server is away."""
        return reached(partial(self.airflow().state, "scale_up_quick", run_id))

    def trigger(self, run_id):
        """Start a ladder as an operator."""
        api = self.airflow()
        until_reached(lambda: api.has_dag("scale_up_quick"), 120)
        api.unpause("scale_up_quick")
        api.trigger("scale_up_quick", run_id, {"note": "the test of docker-compose.yml"})

    def climbed(self, run_id, seconds):
        """Wait until a ladder has ended, and demand that it climbed."""
        state = until_reached(lambda: {"success", "failed"} & {self.run_state(run_id)}, seconds).pop()
        tasks = self.airflow().task_states("scale_up_quick", run_id)
        assert state == "success", f"{state}: { {k: v for k, v in tasks.items() if v != 'success'} }\n{self.said()}"


def fetch_with(url, body, headers):
    """Fetch JSON with headers, which the client of Airflow's API has no need of."""
    import urllib.request

    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def reached(ask):
    """Return an answer, or nothing where nobody is there to give it."""
    try:
        return ask()
    except AirflowUnreachable:
        return None


def until_reached(ask, seconds):
    """Wait for a service that may be away meanwhile, and that tells of nothing by itself."""
    deadline = time.monotonic() + seconds
    while not (answer := reached(ask)):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.5)
    return answer


__all__ = ["SERVICES", "Deployed", "copy_tree", "fetch", "until_reached"]
