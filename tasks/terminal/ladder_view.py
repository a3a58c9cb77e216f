"""A run in the terminal, drawn from its folders alone: a table of the stages, and the gates' verdicts as they fall."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tasks import natures
from tasks.ladder_state import ENDED, StageNow, State, stages_now
from tasks.stage_dir import RunDir

_STYLE: Mapping[State, str] = {
    "waiting": "dim",
    "forecast": "cyan",
    "measuring": "magenta",
    "queued": "cyan",
    "running": "bold blue",
    "judging": "cyan",
    "undecided": "bold yellow",
    "promoting": "cyan",
    "promoted": "bold green",
    "refused": "bold red",
    "stopped": "bold red",
    "failed": "bold red",
}
_MARK = {"PASS": "[green]PASS[/]", "FAIL": "[bold red]FAIL[/]"}


def render(run: RunDir) -> RenderableType:
    """Return the whole run as it stands: stages above, gates below."""
    stages = stages_now(run)
    if not stages:
        return Text(f"{run.experiment}/{run.run_id}: opening the run", style="dim")
    return Group(_table(run, stages), _gates(stages))


def table(run: RunDir) -> RenderableType:
    """Return the stages alone, few enough lines to be redrawn in any terminal."""
    stages = stages_now(run)
    return _table(run, stages) if stages else render(run)


def _table(run: RunDir, stages: list[StageNow]) -> Table:
    # DESIGN's three kinds of number, never mixed: a speed that a cluster file implies says so where it is read.
    speed = "tokens/s/GPU" + (" (modelled)" if any(stage.emulated for stage in stages) else "")
    table = Table(title=f"{run.experiment}  run {run.run_id}", title_justify="left", expand=False)
    table.add_column("stage")
    table.add_column("state")
    table.add_column("step", justify="right")
    table.add_column("", width=16)
    table.add_column("loss (real)", justify="right")
    table.add_column(speed, justify="right")
    table.add_column("gates")
    for stage in stages:
        table.add_row(
            stage.name,
            f"[{_STYLE[stage.state]}]{stage.state}[/]",
            _step(stage),
            _bar(stage),
            "" if stage.loss is None else f"{stage.loss:.4f}",
            "" if stage.tokens_per_gpu_second is None else f"{stage.tokens_per_gpu_second:,.0f}",
            _tally(stage),
        )
    return table


def _step(stage: StageNow) -> str:
    if not stage.step:
        return ""
    phase = f" {stage.phase}" if stage.phase in ("replay", "canary", "probe") and stage.state == "running" else ""
    return f"{stage.step}/{stage.last_step}{phase}"


def _bar(stage: StageNow) -> RenderableType:
    if not stage.step:
        return ""
    total = stage.last_step - stage.first_step + 1
    return ProgressBar(total=total, completed=max(0, stage.step - stage.first_step + 1), width=16)


def _tally(stage: StageNow) -> str:
    outcomes = [str(check["outcome"]) for check in stage.checks.values() if not check.get("shadow")]
    passed, rest = outcomes.count("PASS"), sorted({o for o in outcomes if o != "PASS"})
    said = [f"[green]{passed} PASS[/]"] if passed else []
    return ", ".join(said + [f"[bold red]{outcomes.count(o)} {o}[/]" for o in rest])


def _gates(stages: Iterable[StageNow]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for stage in stages:
        for gate, check in stage.checks.items():
            mark = _MARK.get(str(check["outcome"]), f"[yellow]{check['outcome']}[/]")
            name = gate + natures.mark(check, stage.emulated)
            table.add_row(f"  {stage.name}", mark, name, Text(str(check["reason"]), overflow="fold"))
        if stage.because:
            table.add_row(f"  {stage.name}", f"[{_STYLE[stage.state]}]{stage.state}[/]", "", escape(stage.because))
    return table


class Lines:
    """The same run for a log that no cursor can go back in: one line a change, each only once."""

    def __init__(self) -> None:
        """Start with nothing said."""
        self._states: dict[str, State] = {}
        self._checks: dict[tuple[str, str], str] = {}
        self._tenths: dict[str, int] = {}

    def new(self, run: RunDir) -> list[str]:
        """Return what changed since the last call: states, each gate's verdict as it falls, every tenth of a stage."""
        lines: list[str] = []
        for stage in stages_now(run):
            lines += self._progress(stage)
            lines += self._verdicts(stage)
            if self._states.get(stage.name, "waiting") != stage.state:
                self._states[stage.name] = stage.state
                lines.append(f"{stage.name}  {stage.state}" + (f": {stage.because}" if stage.because else ""))
        return lines

    def verdicts(self, run: RunDir) -> list[str]:
        """Return the gates' verdicts alone that fell since the last call."""
        return [line for stage in stages_now(run) for line in self._verdicts(stage)]

    def _verdicts(self, stage: StageNow) -> list[str]:
        lines = []
        for gate, check in stage.checks.items():
            outcome = str(check["outcome"])
            if self._checks.get((stage.name, gate)) != outcome:
                self._checks[stage.name, gate] = outcome
                name = gate + natures.mark(check, stage.emulated)
                lines.append(f"{stage.name}  {outcome:<14}  {name}: {check['reason']}")
        return lines

    def _progress(self, stage: StageNow) -> list[str]:
        done = stage.step - stage.first_step + 1
        tenth = 10 * done // max(1, stage.last_step - stage.first_step + 1) if stage.step else 0
        if tenth <= self._tenths.get(stage.name, 0) or stage.state in ENDED:
            return []
        self._tenths[stage.name] = tenth
        return [f"{stage.name}  step {_step(stage)}{_number(', loss ', stage.loss, '.4f')}{_speed(stage)}"]


def _number(label: str, value: float | None, how: str) -> str:
    return "" if value is None else f"{label}{value:{how}}"


def _speed(stage: StageNow) -> str:
    kind = " (modelled)" if stage.emulated else ""
    return "" if stage.tokens_per_gpu_second is None else f", {stage.tokens_per_gpu_second:,.0f} tokens/s/GPU{kind}"
