"""A pytest plugin (``-p tests.strict``): tests with a real Airflow come last; SCALEUP_NO_SKIP=1 forbids skips."""

import os

import pytest


def pytest_collection_modifyitems(items):
    """Put the slow ones, which share one Airflow, behind all others."""
    items.sort(key=lambda item: item.get_closest_marker("airflow") is not None)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Turn a skip into a failure: what was not run was not shown to work."""
    outcome = yield
    report = outcome.get_result()
    if os.environ.get("SCALEUP_NO_SKIP") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and SCALEUP_NO_SKIP=1 allows no skipped test: {report.longrepr}"


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector):
    """The same for a module that skips itself while it is collected."""
    outcome = yield
    report = outcome.get_result()
    if os.environ.get("SCALEUP_NO_SKIP") == "1" and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} was skipped, and SCALEUP_NO_SKIP=1 allows no skip: {report.longrepr}"
