"""One event as one message: what, how much, the curve, where to look, what to type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.report import stage_page, todo, words
from tasks.report.story import Story, finite, story_of
from tasks.telling.events import SEVERITY, Event

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40  # points of a curve in text: what a phone shows on one line
_MOST_CHECKS = 5


@dataclass(frozen=True)
class Message:
    """What every channel is given."""

    key: str  # of all runs: an event is told once, and an incident opened under it is closed under it
    subject: str
    lines: tuple[str, ...]
    links: tuple[tuple[str, str], ...]  # (words, address or path)
    severity: str
    resolves: tuple[str, ...] = ()  # keys of earlier messages that this one is the end of
    owner: str = ""

    @property
    def text(self) -> str:
        """All of it as plain text."""
        return "\n".join([*self.lines, "", *(f"{what}: {where}" for what, where in self.links)])


def message_of(event: Event, earlier: Sequence[str], owner: str) -> Message:
    """Return the message of an event; ``earlier`` are the keys of the same stage that were told before."""
    story = story_of(event.stage)
    run = event.stage.run
    name = f"{run.experiment}/{run.run_id}"
    done = event.kind == "promoted"
    lines = [words.sentence(event.says), "", *_how_much(story), *curves(story), *([] if done else _to_do(story))]
    links = (("report", str(event.stage.report_html)), *((what, url) for what, url in stage_page.links(story)[1:]))
    prefix = f"{name}/"
    return Message(
        key=prefix + event.key,
        subject=f"{name}: {_short(event.says)}" + (" (rehearsal)" if story.emulated else ""),
        lines=tuple(lines),
        links=links,
        severity=SEVERITY[event.kind],
        resolves=tuple(prefix + key for key in earlier) if done else (),
        owner=owner,
    )


def curves(story: Story) -> list[str]:
    """Return loss and speed of the recorded steps as bars of text, with first and last value; modelled ones say so."""
    if story.metrics is None:
        return []
    steps, found = story.metrics.steps, []
    for name, column in (("loss", "loss"), ("tokens/s/GPU", "tokens_per_gpu_second")):
        points = finite(steps, "step", column)
        if len(points) > 1:
            values = [value for _, value in points]
            first, last = words.number(values[0]), words.number(values[-1])
            modelled = " (modelled)" if column != "loss" and story.emulated else ""
            found.append(
                f"{name}{modelled} {bars(values)} {first} to {last}, step {points[0][0]:.0f} to {points[-1][0]:.0f}"
            )
    return [*found, ""] if found else []


def bars(values: Sequence[float]) -> str:
    """Return values as bars, each the mean of as many as fall on it; all alike gives a flat line."""
    width = min(_WIDTH, len(values))
    cut = [values[at * len(values) // width : (at + 1) * len(values) // width] for at in range(width)]
    means = [sum(part) / len(part) for part in cut]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


def _how_much(story: Story) -> list[str]:
    said = [
        f"- {check.gate} {words.SAYS.get(str(check.outcome), check.outcome)}: {check.reason}" for check in story.bad
    ]
    more = [f"- and {len(said) - _MOST_CHECKS} more, in the report"] if len(said) > _MOST_CHECKS else []
    return [*said[:_MOST_CHECKS], *more, ""] if said else []


def _to_do(story: Story) -> list[str]:
    commands = [f"{what} {command}" for what, command in todo.commands(story)]
    return [*todo.next_steps(story), *commands, f"To go on costs {todo.cost_to_go_on(story)}."]


def _short(says: str) -> str:
    return says if len(says) <= 110 else says[:107] + "..."
