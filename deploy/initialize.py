"""Databases, tables, buckets, roles and users, before any service starts; each step finds what is there already.

Passwords follow the secret files at every start, so a new word in a file is a new password.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from start import DATABASE_HOST, airflow_configuration, database, mlflow_configuration, secret

BUCKETS = ("mlflow",)


def main() -> None:
    """Do all of it; Airflow's half and MLflow's, each seconds of processor time, side by side."""
    make_databases()
    make_buckets()
    with ThreadPoolExecutor() as both:
        for done in [both.submit(run_part, name) for name in PARTS]:
            done.result()
    print("scaleup: databases, buckets, roles and users are there")


def run_part(name: str) -> None:
    """Run one part in a process of its own, since Airflow and MLflow read their settings once a process."""
    subprocess.run([sys.executable, __file__, name], check=True)


def make_databases() -> None:
    """Give Airflow and MLflow a database each, and a user who may enter no other."""
    import psycopg2
    from psycopg2 import sql

    host, port = DATABASE_HOST.split(":")
    server = psycopg2.connect(
        host=host, port=port, user="postgres", password=secret("postgres_password"), dbname="postgres"
    )
    server.autocommit = True  # no database is made inside a transaction
    with server.cursor() as cursor:
        for name in ("airflow", "mlflow"):
            who = sql.Identifier(name)
            cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,))
            verb = sql.SQL("ALTER" if cursor.fetchone() else "CREATE")
            password = sql.Literal(secret(f"{name}_db_password"))
            cursor.execute(sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(verb, who, password))
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
            if not cursor.fetchone():
                cursor.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(who, who))
            cursor.execute(sql.SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC").format(who))
    server.close()


def make_buckets() -> None:
    """Make the buckets of the S3-compatible store that are not there."""
    import boto3

    secret("s3_credentials")  # boto3 reads the same file by itself
    store: Any = boto3.client("s3", endpoint_url=os.environ["MLFLOW_S3_ENDPOINT_URL"])
    there = {bucket["Name"] for bucket in store.list_buckets()["Buckets"]}
    for name in BUCKETS:
        if name not in there:
            store.create_bucket(Bucket=name)


def airflow_part() -> None:
    """Bring Airflow's tables to the installed version; make roles and the two first users."""
    airflow_configuration()
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True)
    from airflow.providers.fab.auth_manager.cli_commands.utils import get_application_builder
    from airflow.providers.fab.www.security import permissions as p

    with get_application_builder() as builder:
        manager: Any = builder.sm
        manager.sync_roles()
        answers = {
            (p.ACTION_CAN_EDIT, p.RESOURCE_HITL_DETAIL),
            (p.ACTION_CAN_ACCESS_MENU, p.RESOURCE_HITL_DETAIL),
        }
        viewer, user = set(manager.VIEWER_PERMISSIONS), set(manager.USER_PERMISSIONS)
        # Who starts a ladder does not also answer for its gates, unless given both roles.
        _allow(manager, "Operator", (viewer | user) - answers)
        _allow(manager, "Approver", viewer | answers)
        _user(manager, "admin", "Admin", secret("airflow_admin_password"))
        _user(manager, "operator", "Operator", secret("airflow_operator_password"))


def _allow(manager: Any, name: str, allowed: set[tuple[str, str]]) -> None:
    role = manager.add_role(name)
    for action, resource in sorted(allowed):
        manager.add_permission_to_role(role, manager.create_permission(action, resource))


def _user(manager: Any, name: str, role: str, password: str) -> None:
    found = manager.find_user(username=name)
    if found:
        manager.reset_password(found.id, password)
        return
    address = f"{name}@scaleup.invalid"  # RFC 2606: never anybody's
    if not manager.add_user(name, name, role, address, manager.find_role(role), password):
        raise SystemExit(f"scaleup: Airflow did not make the user '{name}'")


def mlflow_part() -> None:
    """Bring MLflow's tables to the installed version; make its administrator, and the user that tasks log in as."""
    mlflow_configuration()
    from mlflow.server.auth import store as users
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy import create_engine, inspect

    address = database("mlflow")
    if inspect(create_engine(address)).has_table("alembic_version"):
        subprocess.run([sys.executable, "-m", "mlflow", "db", "upgrade", address], check=True)
    else:
        made: Any = SqlAlchemyStore  # to open a store is what makes its tables
        made(address, "mlflow-artifacts:/")
    users.init_db(address)
    for name, word, is_admin in (("admin", "mlflow_admin_password", True), ("scaleup", "mlflow_password", False)):
        if users.has_user(name):
            users.update_user(name, secret(word), is_admin)
        else:
            users.create_user(name, secret(word), is_admin)


PARTS = {"airflow": airflow_part, "mlflow": mlflow_part}

if __name__ == "__main__":
    PARTS[sys.argv[1]]() if sys.argv[1:] else main()
