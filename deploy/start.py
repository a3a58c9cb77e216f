"""``python deploy/start.py SERVICE``: what a container runs. Secrets come from files and go into files, in memory.

A secret in a container's environment would stand in ``docker inspect`` and in the environment of every training job.
Airflow and MLflow's clients read theirs from files in a tmpfs instead; only the MLflow server, which starts no jobs,
has to have its own in its environment.
"""

from __future__ import annotations

import configparser
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

SECRETS = Path(os.environ.get("SCALEUP_SECRETS_FOLDER", "/run/secrets"))
DATABASE_HOST = "postgres:5432"
MLFLOW_HOSTS = ("mlflow:5000", "localhost:*", "127.0.0.1:*")  # names under which it may be asked: no DNS rebinding
CONFIGURATION_ERROR = 78  # EX_CONFIG of sysexits.h


def give_up(sentence: str) -> NoReturn:
    """End with one sentence."""
    print(f"scaleup: {sentence}", file=sys.stderr)
    raise SystemExit(CONFIGURATION_ERROR)


def secret(name: str) -> str:
    """Return a secret; end with a sentence where there is none, since no secret here has a default."""
    path = SECRETS / name
    try:
        text = path.read_text().strip()
    except OSError as error:
        # An engine makes a folder of a file that is missing.
        why = "is missing" if isinstance(error, (FileNotFoundError, IsADirectoryError)) else f"({error.strerror})"
        give_up(f"the secret '{name}' {why}; `make secrets` writes it, once, into the folder that .env names")
    return text or give_up(f"the secret '{name}' is empty; write a long random word into its file")


def database(name: str) -> str:
    """Return the address of a database, which has a user and a secret of its own."""
    return f"postgresql+psycopg2://{name}:{quote(secret(f'{name}_db_password'), safe='')}@{DATABASE_HOST}/{name}"


def write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone can read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def write_sections(path: Path, sections: dict[str, dict[str, str]]) -> None:
    """Write an INI file that its owner alone can read."""
    parser = configparser.ConfigParser(interpolation=None)
    # Airflow and MLflow read a % as the start of a reference.
    parser.read_dict({s: {k: v.replace("%", "%%") for k, v in keys.items()} for s, keys in sections.items()})
    text = io.StringIO()
    parser.write(text)
    write_private(path, text.getvalue())


def airflow_configuration() -> None:
    """Write ``airflow.cfg`` with the secrets; all that is none stands in docker-compose.yml."""
    write_sections(
        Path(os.environ["AIRFLOW_HOME"]) / "airflow.cfg",
        {
            "core": {"fernet_key": secret("airflow_fernet_key")},
            "database": {"sql_alchemy_conn": database("airflow")},
            "api": {"secret_key": secret("airflow_secret_key")},
            "api_auth": {"jwt_secret": secret("airflow_jwt_secret")},
        },
    )


def airflow(*arguments: str) -> Sequence[str]:
    """Return the command of one of Airflow's services."""
    airflow_configuration()
    return (sys.executable, "-m", "tasks.services.airflow_main", *arguments)


def scheduler() -> Sequence[str]:
    """Return the scheduler's command; LocalExecutor runs tasks, and the local launcher jobs, in its container."""
    from tasks.services.preload import LOCAL_SETTINGS

    credentials = {"mlflow_tracking_username": "scaleup", "mlflow_tracking_password": secret("mlflow_password")}
    write_sections(Path.home() / ".mlflow" / "credentials", {"mlflow": credentials})
    write_private(Path(os.environ["AIRFLOW_HOME"]) / "config" / "airflow_local_settings.py", LOCAL_SETTINGS)
    return airflow("scheduler", "--skip-serve-logs")


def mlflow_configuration() -> None:
    """Write the file of MLflow's log-in; who may log in and who owns what is in MLflow's own database."""
    path = Path.home() / "mlflow_auth.ini"
    keys = {
        "default_permission": "READ",  # of what somebody else made
        "database_uri": database("mlflow"),
        "admin_username": "admin",
        "admin_password": secret("mlflow_admin_password"),
        "authorization_function": "mlflow.server.auth:authenticate_request_basic_auth",
        # A password is checked by thousands of rounds of hashing, which each call of a curve's upload would pay for.
        "auth_cache_ttl_seconds": "60",
    }
    write_sections(path, {"mlflow": keys})
    os.environ["MLFLOW_AUTH_CONFIG_PATH"] = str(path)
    os.environ["MLFLOW_BACKEND_STORE_URI"] = database("mlflow")
    os.environ["MLFLOW_FLASK_SERVER_SECRET_KEY"] = secret("mlflow_secret_key")


def mlflow() -> Sequence[str]:
    """Return the command of the MLflow server; artifacts go through it, so only it has the store's credentials."""
    secret("s3_credentials")
    mlflow_configuration()
    return (
        *(sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth", "--host", "0.0.0.0"),  # noqa: S104
        *("--port", "5000", "--workers", "1", "--artifacts-destination", "s3://mlflow"),
        *("--allowed-hosts", ",".join(MLFLOW_HOSTS)),
    )


def initialize() -> Sequence[str]:
    """Return the command that makes databases, tables, buckets, roles and users."""
    return (sys.executable, str(Path(__file__).with_name("initialize.py")))


SERVICES = {
    "initialize": initialize,
    "api-server": lambda: airflow("api-server", "--host", "0.0.0.0", "--port", "8080"),  # noqa: S104
    "scheduler": scheduler,
    "dag-processor": lambda: airflow("dag-processor"),
    "triggerer": lambda: airflow("triggerer", "--skip-serve-logs"),
    "mlflow": mlflow,
}


def main(arguments: Sequence[str]) -> None:
    """Become the service."""
    if len(arguments) != 1 or arguments[0] not in SERVICES:
        give_up(f"say which service: {', '.join(SERVICES)}; not {' '.join(arguments) or 'nothing'}")
    command = SERVICES[arguments[0]]()
    os.execv(command[0], command)  # noqa: S606  # no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
