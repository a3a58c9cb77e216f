"""What the demo says at its end: the stages, what was promoted and where, and where to look further."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tasks import tracking
from tasks.ladder_outcome import outcome
from tasks.ladder_state import StageNow, stages_now
from tasks.services import airflow, mlflow
from tasks.stage_dir import RunDir, home, read_json


def summary(run: RunDir, state: str) -> RenderableType:
    """Return the closing table and its one sentence; ``state`` is Airflow's word on the run."""
    style = "bold green" if state == "success" else "bold red"
    return Group(Text(), _stages(stages_now(run)), Text(), Text(outcome(run).sentence, style=style), Text())


def addresses(airflow_port: int, mlflow_port: int) -> list[str]:
    """Return where the two UIs will be, a line each, while they still start."""
    rows = {
        "Airflow": airflow.url(airflow_port),
        "log in as": f"{airflow.USER}, password {airflow.password()}",
        "MLflow": mlflow.url(mlflow_port),
    }
    return [f"  {name:<24} {value}" for name, value in rows.items()]


def links(run: RunDir, airflow_port: int) -> list[str]:
    """Return where to look further, a line each, not to be folded: a terminal makes whole addresses clickable."""
    origin = (read_json(run.info) or {}).get("origin", {})
    rows = {
        "Airflow": origin.get("url") or airflow.url(airflow_port),
        "log in as": f"{airflow.USER}, password {airflow.password()}",
        "MLflow, stages compared": tracking.compare_url(run) or "not there yet",
        "MLflow, curves": tracking.curves_url(run) or "not there yet",
        "home of runs and store": str(home()),
        "report": str(run.report_html) if run.report_html.exists() else "not written",
    }
    return [f"  {name:<24} {value}" for name, value in rows.items()]


def _stages(stages: list[StageNow]) -> Table:
    table = Table(title="The ladder", title_justify="left")
    for column in ("stage", "ended as", "loss (real)", "gates", "promoted as"):
        table.add_column(column, overflow="fold")
    for stage in stages:
        passed = sum(check["outcome"] == "PASS" for check in stage.checks.values())
        table.add_row(
            stage.name,
            f"[green]{stage.state}[/]" if stage.state == "promoted" else f"[red]{stage.state}[/]",
            "" if stage.loss is None else f"{stage.loss:.4f}",
            f"{passed} of {len(stage.checks)} PASS" if stage.checks else "",
            Text(_short(stage.checkpoint)),
        )
    return table


def _short(checkpoint: str) -> str:
    """Return where a checkpoint is kept as one reads it best: within the home, whose name stands among the links."""
    path = Path(checkpoint)
    return str(path.relative_to(home())) if path.is_relative_to(home()) else checkpoint or "-"
