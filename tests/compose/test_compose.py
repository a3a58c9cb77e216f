"""docker-compose.yml, unchanged, in a real engine: a ladder through restarts, log-ins, ports, secrets, backup.

``make test-compose`` runs it. Images of other people are stand-ins of the same names (stand_ins.py); ours are built
from the Dockerfile. The tests build on each other, in the order in which they stand here.
"""

import json
import os
import socket
import urllib.error
from pathlib import Path

import container_engine
import psutil
import pytest
import stand_ins
from deployed import SERVICES, Deployed, copy_tree, until_reached

from tasks.services import ports
from tasks.services.airflow_api import AirflowApi, AirflowRefused, fetch

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]
PLANTED = "planted-word-that-no-image-may-hold"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    if why := container_engine.why_not():
        pytest.skip(why)
    kept = os.environ.get("SCALEUP_TEST_ENGINE")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("engine")
    folder.mkdir(exist_ok=True)
    with container_engine.Engine(folder).up() as running:
        yield running


@pytest.fixture(scope="module")
def deployed(engine, tmp_path_factory):
    """The images, and every service healthy."""
    tree = copy_tree(tmp_path_factory.mktemp("deployed") / "scaleup")
    project = Deployed(engine, tree)
    (tree / "secrets" / "planted").write_text(PLANTED)
    with (tree / ".env").open("a") as file:
        file.write(f"# {PLANTED}\n")
    port = int(os.environ.get("SCALEUP_TEST_WHEELS_PORT", ports.free_port()))
    with stand_ins.wheels_served(port) as wheels:
        stand_ins.build(engine, tmp_path_factory.mktemp("images"), wheels)
        for target in ("pipeline", "trainer"):
            engine("build", "--network", "host", "--target", target, "-t", f"scaleup/{target}:0.1.0", str(tree))
    project.make("up")
    yield project
    project.make("down")
    volumes = [f"{project.project}_{name}" for name in ("postgres", "store", "home", "airflow-logs")]
    engine("volume", "rm", "--force", *volumes)


def test_a_ladder_climbs_while_each_service_is_restarted(deployed):
    deployed.trigger("first")
    api = deployed.airflow()
    until_reached(lambda: api.task_states("scale_up_quick", "first").get("gpus_8.promote") == "success", 180)
    for service in SERVICES:
        deployed.engine("restart", "--time", "5", deployed.container(service))
    deployed.climbed("first", 300)
    for service in SERVICES:
        until_reached(lambda service=service: deployed.healthy(service), 120)


def test_the_curves_are_in_mlflow_and_the_files_in_the_store(deployed):
    assert set(stage_runs(deployed)) == {"first/gpus_8", "first/gpus_64", "first/gpus_1000"}
    kept = deployed.objects()["mlflow"]
    for run_id in stage_runs(deployed).values():
        assert [key for key in kept if run_id in key and key.endswith("report.html")]


def test_log_ins_have_roles(deployed):
    operator, admin = deployed.airflow(), deployed.airflow("admin")
    for forbidden in ("/connections", "/variables"):
        with pytest.raises(AirflowRefused, match=r"^403"):
            operator.call(forbidden)
        admin.call(forbidden)
    with pytest.raises(AirflowRefused, match=r"^401"):
        fetch(f"{operator.base}/api/v2/dags")
    with pytest.raises(AirflowRefused, match=r"^401"):
        AirflowApi(operator.base, "operator", "guess").call("/dags")
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        deployed.mlflow("experiments/search?max_results=1", word="guess")
    refused.value.close()


def test_nothing_listens_beyond_this_machine(deployed):
    bindings = {}
    for service in SERVICES:
        for bound in deployed.facts(service)["NetworkSettings"]["Ports"].values():
            for one in bound or []:
                bindings[int(one["HostPort"])] = one["HostIp"]
    assert bindings == {deployed.airflow_port: "127.0.0.1", deployed.mlflow_port: "127.0.0.1"}
    heard = {c.laddr.ip for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr.port in bindings}
    assert heard == {"127.0.0.1"}
    with pytest.raises(OSError), socket.create_connection((_own_address(), deployed.airflow_port), timeout=2):
        pass


def test_no_secret_is_seen_from_outside(deployed):
    words = {**deployed.secrets(), "planted": PLANTED}
    names = deployed.containers()
    seen = {
        "docker inspect": deployed.engine("inspect", *names),
        "docker history": deployed.engine("history", "--no-trunc", "scaleup/trainer:0.1.0"),
        "docker top": "".join(deployed.engine("top", name, check=False) for name in names),
        **{f"the log of {name}": deployed.engine("logs", name) for name in names},
    }
    assert all(len(word) >= 20 for word in words.values())
    assert "sql_alchemy_conn" not in seen["docker inspect"].lower()
    assert [(what, name) for what, text in seen.items() for name, word in words.items() if word in text] == []


def test_no_image_holds_a_secret(deployed):
    code = (
        "import pathlib, sys; words = sys.stdin.read().split();"
        "files = [p for p in pathlib.Path('/opt/scaleup').rglob('*') if p.is_file()];"
        "print(len(files), [str(p) for p in files if any(w.encode() in p.read_bytes() for w in words)])"
    )
    words = " ".join([*deployed.secrets().values(), PLANTED])
    said = deployed.engine(
        *("run", "--rm", "-i", "--network", "none", "--entrypoint", "python", "scaleup/trainer:0.1.0", "-c", code),
        input=words,
    )
    count, found = said.split(maxsplit=1)
    assert int(count) > 100
    assert json.loads(found.replace("'", '"')) == []


def test_a_secret_that_is_missing_stops_with_a_sentence(deployed):
    word = deployed.tree / "secrets" / "mlflow_password"
    kept = word.read_text()
    word.unlink()
    try:
        done = deployed.make("up", check=False)
    finally:
        word.write_text(kept)
        word.chmod(0o444)
    assert done.returncode == 1
    assert "the secret ./secrets/mlflow_password is missing or empty" in done.stdout
    said = deployed.engine("run", "--rm", "--network", "none", "scaleup/pipeline:0.1.0", "mlflow", check=False)
    assert said.startswith("scaleup: the secret 's3_credentials' is missing; `make secrets` writes it")


def test_a_backup_is_whole_and_the_next_ladder_builds_on_it(deployed, tmp_path):
    before = stage_runs(deployed)
    deployed.make("backup", tmp_path / "kept")
    deployed.make("down")
    volumes = [f"{deployed.project}_{name}" for name in ("postgres", "store", "home", "airflow-logs")]
    deployed.engine("volume", "rm", *volumes)
    deployed.make("restore", tmp_path / "kept")
    assert stage_runs(deployed) == before
    assert deployed.run_state("first") == "success"
    promoted = "/var/lib/scaleup/home/runs/quick/first/gpus_1000/promotion.json"
    assert "checkpoint" in deployed.engine("exec", deployed.container("scheduler"), "cat", promoted)
    deployed.trigger("second")
    deployed.climbed("second", 240)
    assert set(stage_runs(deployed)) - set(before) == {f"second/gpus_{gpus}" for gpus in (8, 64, 1000)}


def stage_runs(deployed):
    """Return the MLflow ids of the runs of stages that have ended well, by run and stage."""
    experiments = deployed.mlflow("experiments/search?max_results=100")["experiments"]
    ids = [e["experiment_id"] for e in experiments if "quick" in e["name"]]
    found = deployed.mlflow("runs/search", {"experiment_ids": ids, "max_results": 100})["runs"]
    tags = {run["info"]["run_id"]: {t["key"]: t["value"] for t in run["data"]["tags"]} for run in found}
    finished = {run["info"]["run_id"] for run in found if run["info"]["status"] == "FINISHED"}
    return {
        said["scaleup.stage_key"]: run_id
        for run_id, said in tags.items()
        if "scaleup.stage_key" in said and run_id in finished
    }


def _own_address():
    """Return an address of this machine that is not its loopback."""
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family == socket.AF_INET and not one.address.startswith("127."):
                return one.address
    pytest.skip("this machine has no address but its loopback")
