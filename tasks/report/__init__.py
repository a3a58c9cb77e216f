"""The stage report and the ladder report: for a tired person at night, one page each, from the folders alone.

HTML without any outside resource, and the same as Markdown. What is missing is said on the page, not raised.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from tasks import tracking
from tasks.report import ladder_page, stage_page
from tasks.report.story import stories_of, story_of
from tasks.score import score
from tasks.stage_dir import RunDir, StageDir, write_whole
from tasks.telling import tell
from tasks.tracking import summary


def report(stage: StageDir) -> Path:
    """Write ``report.html`` and ``report.md`` of a stage, renew the ladder's, ship both; return the stage's page."""
    if summary.is_over(stage) and not stage.verdict.exists():
        score(stage)  # no verdict came that would have brought it: stopped at its canary, by its hours, by a person
    _write(stage.report_html, stage.report_md, "stage", stage_page.context(story_of(stage)))
    report_run(stage.run)
    tell(stage.run)
    return stage.report_html


def report_run(run: RunDir) -> Path:
    """Write ``report.html`` and ``report.md`` of a run, ship what MLflow lacks, and return the page."""
    stories, missing = stories_of(run)
    _write(run.report_html, run.report_md, "ladder", ladder_page.context(run, stories, missing))
    tracking.sync(run)
    return run.report_html


def render(template: str, context: dict[str, Any]) -> str:
    """Return a page of another kind, from a template beside the reports' own."""
    return _environment().get_template(template).render(context)


def _write(html: Path, text: Path, kind: str, context: dict[str, Any]) -> None:
    pages = _environment()
    write_whole(html, pages.get_template(f"{kind}.html.j2").render(context))
    write_whole(text, pages.get_template(f"{kind}.md.j2").render(context))


@cache
def _environment() -> Environment:
    pages = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(["html.j2"]),  # Markdown has the filter `plain` instead
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["plain"] = _plain
    return pages


def _plain(value: Any) -> str:
    """Return words that Markdown takes as words: one line, no table bars, no HTML."""
    said = " ".join(str(value).split())
    return said.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
