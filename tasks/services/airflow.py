"""Airflow as four services on 127.0.0.1: API server, scheduler, DAG processor, triggerer.

Not ``airflow standalone``: it listens on every address, and ended by SIGTERM it leaves children behind.
"""

from __future__ import annotations

import configparser
import io
import json
import os
import secrets
import subprocess
import sys
from base64 import urlsafe_b64encode
from importlib.metadata import version
from pathlib import Path

from tasks.services import database
from tasks.services.airflow_api import AirflowApi, AirflowRefused, AirflowUnreachable, fetch
from tasks.services.mlflow import REPOSITORY, quiet
from tasks.services.ports import HOST
from tasks.services.preload import LOCAL_SETTINGS
from tasks.services.process import Service, ServiceFailed, last_lines, services_folder
from tasks.stage_dir import home, read_json, write_whole

USER = "admin"


def folder() -> Path:
    """Return ``AIRFLOW_HOME``: configuration, database, logs, passwords."""
    return home() / "airflow"


def url(port: int) -> str:
    """Return the address of UI and API."""
    return f"http://{HOST}:{port}"


def api(port: int) -> AirflowApi:
    """Return the REST API, spoken to as the one user."""
    return AirflowApi(url(port), USER, password())


def password() -> str:
    """Return the generated password of :data:`USER`; the file that holds it is readable by its owner alone."""
    return str(json.loads(_passwords().read_text())[USER])


def prepare(port: int) -> None:
    """Write configuration and secrets, and bring the database to this Airflow's version where it is not."""
    configure(port)
    if not is_prepared():
        prepare_database(port)


def configure(port: int) -> None:
    """Write ``airflow.cfg`` and, the first time, the password and the secrets."""
    folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    folder().chmod(0o700)
    if not _passwords().exists():
        _write_private(_passwords(), json.dumps({USER: secrets.token_urlsafe(12)}) + "\n")
    text = io.StringIO()
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_dict(settings(port))
    parser.write(text)
    _write_private(folder() / "airflow.cfg", text.getvalue())
    write_whole(folder() / "config" / "airflow_local_settings.py", LOCAL_SETTINGS)


def is_prepared() -> bool:
    """Say whether the database is there, in the form of the Airflow that is installed."""
    return database.is_current(_database(), version("apache-airflow-core"))


def prepare_database(port: int) -> None:
    """Make the database, or bring it to the installed Airflow's form."""
    configure(port)
    services_folder().mkdir(parents=True, exist_ok=True)
    database.bring_to(_database(), version("apache-airflow-core"), _migrate)


def _migrate(draft: Path) -> None:
    log = services_folder() / "airflow-migrate.log"
    with log.open("wb") as output:
        done = subprocess.run(
            (sys.executable, "-m", "airflow", "db", "migrate"),
            env={**environment("", 0), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{draft}"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        raise ServiceFailed(f"`airflow db migrate` ended with {done.returncode}; {log} ends:\n{last_lines(log)}")


def settings(port: int) -> dict[str, dict[str, str]]:
    """Return ``airflow.cfg``: what differs from Airflow's own defaults, each for a reason."""
    kept = _secrets()
    return {
        "core": {
            "dags_folder": str(REPOSITORY / "dags"),
            "executor": "LocalExecutor",
            "parallelism": "4",  # each is a process that is always there; a ladder needs one or two
            "load_examples": "False",
            "auth_manager": "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager",
            "simple_auth_manager_users": f"{USER}:admin",
            "simple_auth_manager_passwords_file": str(_passwords()),
            "execution_api_server_url": f"{url(port)}/execution/",
            "fernet_key": kept["fernet_key"],
            "min_serialized_dag_update_interval": "5",
        },
        "database": {"sql_alchemy_conn": f"sqlite:///{_database()}"},
        "api": {
            "host": HOST,
            "port": str(port),
            "base_url": url(port),
            "workers": "1",
            "secret_key": kept["secret_key"],
            "expose_config": "False",
        },
        "api_auth": {"jwt_secret": kept["jwt_secret"]},
        # How soon a dead scheduler or a dead task is noticed; the defaults are minutes.
        "scheduler": {
            "job_heartbeat_sec": "2",
            "scheduler_heartbeat_sec": "2",
            "scheduler_health_check_threshold": "10",
            "orphaned_tasks_check_interval": "5",
            "task_instance_heartbeat_timeout": "30",
            "task_instance_heartbeat_timeout_detection_interval": "5",
            "scheduler_idle_sleep_time": "0.5",
            "task_queued_timeout": "60",
            "task_queued_timeout_check_interval": "10",
        },
        "workers": {"min_heartbeat_interval": "2"},
        "dag_processor": {
            "parsing_processes": "1",
            "min_file_process_interval": "30",  # a new experiment's YAML becomes a DAG within this
            "refresh_interval": "60",
            "dag_file_processor_timeout": "60",
        },
        "triggerer": {"job_heartbeat_sec": "2", "capacity": "10"},
        "logging": {
            "base_log_folder": str(folder() / "logs"),
            "logging_level": "INFO",
            "colored_console_log": "False",
        },
    }


def environment(mlflow_url: str, port: int) -> dict[str, str]:
    """Return the variables of all four services and so of every task; nothing of a user's own Airflow gets in."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW__", "AIRFLOW_"))}
    return {
        **inherited,
        **quiet(),
        "AIRFLOW_HOME": str(folder()),
        # Airflow and torch start children by their bare names.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])),
        "NO_PROXY": ",".join(filter(None, [HOST, "localhost", os.environ.get("NO_PROXY")])),
        "SCALEUP_HOME": str(home()),
        "SCALEUP_AIRFLOW_URL": url(port),
        "MLFLOW_TRACKING_URI": mlflow_url,
    }


def services(port: int, mlflow_url: str) -> list[Service]:
    """Return the four services, the one that takes longest to come up first."""
    variables = environment(mlflow_url, port)
    commands = {
        "api-server": ("api-server", "--host", HOST, "--port", str(port), "--workers", "1"),
        "scheduler": ("scheduler", "--skip-serve-logs"),
        "dag-processor": ("dag-processor",),
        "triggerer": ("triggerer", "--skip-serve-logs"),
    }

    def healthy(name: str, since: float) -> bool:
        client = AirflowApi(url(port), USER, "")
        try:
            beats = client.heartbeats()
        except (AirflowUnreachable, AirflowRefused):
            return False
        return _answers_tasks(port) if name == "api-server" else beats[name.replace("-", "_")] >= since

    return [
        Service(
            f"airflow-{name}",
            (sys.executable, "-m", "tasks.services.airflow_main", *arguments),
            variables,
            lambda since, name=name: healthy(name, since),  # type: ignore[misc]
            port if name == "api-server" else None,
        )
        for name, arguments in commands.items()
    ]


def answers(port: int) -> bool:
    """Say whether the API server answers people and programs; tasks it may still keep waiting."""
    try:
        AirflowApi(url(port), USER, "").heartbeats()
    except (AirflowUnreachable, AirflowRefused):
        return False
    return True


def _answers_tasks(port: int) -> bool:
    """Ask the part of the API that tasks talk to. It builds itself at the first question, seconds of processor time
    in which nobody else is answered: better while all else still starts than when the first task does.
    """
    try:
        fetch(f"{url(port)}/execution/health", timeout=5)
    except (AirflowUnreachable, AirflowRefused):
        return False
    return True


def _database() -> Path:
    return folder() / "airflow.db"


def _passwords() -> Path:
    return folder() / "passwords.json"


def _secrets() -> dict[str, str]:
    path = folder() / "secrets.json"
    kept = read_json(path)
    if kept is None:
        kept = {
            "fernet_key": urlsafe_b64encode(os.urandom(32)).decode(),
            "jwt_secret": secrets.token_urlsafe(48),
            "secret_key": secrets.token_urlsafe(32),
        }
        _write_private(path, json.dumps(kept) + "\n")
    return {key: str(value) for key, value in kept.items()}


def _write_private(path: Path, text: str) -> None:
    write_whole(path, text, mode=0o600)
    path.chmod(0o600)
