"""``python -m tasks.services.mlflow_main PORT``: the MLflow server, its database made whole before it serves.

In the process that serves, since loading mlflow twice would cost another five seconds of processor time.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tasks.services.database import bring_to
from tasks.services.ports import HOST
from tasks.stage_dir import home


def main(port: int) -> None:
    """Serve on ``port`` until ended."""
    folder = home() / "mlflow"
    database = folder / "mlflow.db"
    bring_to(database, version("mlflow"), _make)
    from mlflow.cli import cli

    cli(
        [
            *("server", "--host", HOST, "--port", str(port), "--workers", "1"),
            *("--backend-store-uri", f"sqlite:///{database}"),
            *("--artifacts-destination", (folder / "artifacts").as_uri()),
        ]
    )


def _make(draft: Path) -> None:
    uri = f"sqlite:///{draft}"
    if draft.exists():
        subprocess.run([sys.executable, "-m", "mlflow", "db", "upgrade", uri], check=True)
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store: Any = SqlAlchemyStore  # to open a store is what makes its tables
    store(uri, "mlflow-artifacts:/")._dispose_engine()


if __name__ == "__main__":
    main(int(sys.argv[1]))
