"""A pytest plugin (``-p tests.strict``): which test runs when, on which worker; SCALEUP_NO_SKIP=1 forbids skips."""

import os

import pytest

SHARED = ("airflow", "slurm")  # one real service for all tests that need it, so one worker


@pytest.hookimpl(wrapper=True)  # so before xdist, which writes the groups into the tests' names as early as it can
def pytest_collection_modifyitems(config, items):
    """Give each test its group: tests of one group run one after the other, on one worker.

    A group is a module, or all that share a real service. By itself a process runs Airflow's tests last, for the fast
    ones should speak first; beside another worker it must begin with them, for they take longest.
    """
    workers = hasattr(config, "workerinput")
    modules = {item.module: _shared(item) for item in items if _shared(item)}
    for item in items:
        item.add_marker(pytest.mark.xdist_group(modules.get(item.module, item.module.__name__)))
    last = len(SHARED)
    rank = {name: place for place, name in enumerate(SHARED)}
    if workers:
        items.sort(key=lambda item: rank.get(_group(item), last))
    else:
        items.sort(key=lambda item: _group(item) == "airflow")
    yield
    if workers and not all("@" in item.nodeid for item in items):
        raise pytest.UsageError("this pytest-xdist does not group tests by xdist_group: modules would be torn apart")


def _shared(item):
    """Return which shared service a test needs, or None."""
    return next((name for name in SHARED if name in item.fixturenames or item.get_closest_marker(name)), None)


def _group(item):
    return item.get_closest_marker("xdist_group").args[0]


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
