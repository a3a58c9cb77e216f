"""A backtest in the terminal: what was foretold, how far off, beside what else could have foretold it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, ConsoleRenderable, Group
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table as Grid
from rich.text import Text

from tasks.backtest import FAR, FITS, Backtest
from tasks.backtest.score import MIXTURE, OURS, SINGLE, Foretold, Score, methods_of, score

_NAMES = {
    OURS: "Scaleup", MIXTURE: "GATES 4.2, mixture", SINGLE: "GATES 4.2, single prior",
    "power_law": "power law", "constant": "constant", "usl": "USL",
}  # fmt: skip
_FITS = {"two_smallest": "two smallest scales -> largest", "all_but_largest": "all but the largest -> largest"}
_WORST = 5  # misses that are named


def show(done: Backtest, console: Console) -> None:
    """Print the tables of weak scaling, then those of strong scaling, or that there are none."""
    console.print(escape(_head(done)), highlight=False)
    for kind, fits in done.found.items():
        if not fits[FITS[0]]:
            console.print(f"\nno series of {kind} scaling", highlight=False)
        for fit in FITS:
            if fits[fit]:
                console.print(Group(*_tables(f"{kind} scaling, {_FITS[fit]}", fits[fit])), highlight=False)
    console.print(
        "\nerror: |foretold / observed - 1| of throughput a GPU, in brackets a 90% interval by resampling families; "
        "coverage: how often the observed was not below the nominal 95% lower bound",
        highlight=False,
    )


@contextmanager
def progress() -> Iterator[Callable[[str, float], None]]:
    """Show on stderr, where that is a terminal, what is being done and the part of it done."""
    console = Console(stderr=True)
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console,
                  transient=True, disable=not console.is_terminal) as bar:  # fmt: skip
        tasks: dict[str, TaskID] = {}

        def told(what: str, part: float) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=1.0)
            bar.update(tasks[what], completed=part)

        yield told


def _head(done: Backtest) -> str:
    left = "".join(f"; left out: {n} with {reason}" for reason, n in done.table.left_out.items())
    whose = {
        "shipped": "foretold with the shipped prior, the one that the gates use",
        "left-out": f"each of {done.families} families foretold by a prior learned from the others alone",
    }[done.prior]
    said = f"{done.table.path}: {len(done.table.series)} series{left}\n{whose}"
    if done.taught and done.prior == "shipped":
        said += f"\nthe shipped prior was learned from {done.taught} of these series: their errors flatter it"
    return said


def _tables(title: str, found: Sequence[Foretold]) -> Iterator[ConsoleRenderable]:
    grid = Grid(title=f"\n{title}", title_justify="left", title_style="bold")
    for column in ("gaps", "n", "", "median error", "p90 error", "coverage of lower 95%"):
        grid.add_column(column, justify="right" if column == "n" else "left")
    for gaps, some in (("all", found), (f"x{FAR:.0f} and more", [one for one in found if one.gap >= FAR])):
        for method in methods_of(some):
            scored = score(some, method)
            if scored is not None:
                first = method == OURS
                name = f"[bold]{_NAMES[method]}[/]" if first else _NAMES[method]
                grid.add_row(gaps if first else "", str(scored.n) if first else "", name, *_cells(scored))
        grid.add_section()
    yield grid
    refused = [one for one in found if one.refused]
    yield _line(f"refused to foretell: {len(refused)} of {len(found)} ({len(refused) / len(found):.0%})")
    for one in refused:
        yield _line(f"  {one.series}, {_scales(one)}: {one.refused}")
    made = sorted((one for one in found if not one.refused), key=lambda one: -abs(one.off()))
    yield _line("worst misses:" if made else "nothing was foretold")
    for one in made[:_WORST]:
        outside = "" if one.covered(OURS) else ", below the lower bound"
        yield _line(f"  {one.series}, {_scales(one)}: foretold {one.off():+.1%} of the observed{outside}")


def _cells(made: Score) -> tuple[str, str, str]:
    coverage = "-" if made.coverage is None else f"{made.coverage:.1%}{_interval(made, 'coverage', 0)}"
    return (
        f"{made.median:.2%}{_interval(made, 'median', 1)}",
        f"{made.p90:.2%}{_interval(made, 'p90', 1)}",
        coverage,
    )


def _interval(made: Score, name: str, digits: int) -> str:
    if name not in made.interval:
        return ""
    low, high = made.interval[name]
    return f" ({low:.{digits}%} to {high:.{digits}%})"


def _scales(one: Foretold) -> str:
    return f"{', '.join(str(g) for g in one.fitted)} -> {one.target} GPUs"


def _line(text: str) -> ConsoleRenderable:
    return Text(text)
