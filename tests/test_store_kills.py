"""Killed at every boundary: a store's writer dies before and after each write, fsync, rename and request, in turn.

The boundaries are found by tracing, not named: the interpreter calls us before and after every C function, and those
that change a file system or talk to a server count. A child process, forked, is killed at its first, its second, ...
until it comes to its end. After each death a reader looks, and the same work is done again.
"""

import dataclasses
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from s3_servers import CREDENTIALS, s3_server
from stores import KIB, contents, folder_settings, s3_settings, series_of

from training import manifest
from training.store import Absent, fetch, keep, problems, put, replicate

CHANGES = frozenset(
    {"fsync", "replace", "rename", "link", "unlink", "mkdir", "rmdir", "truncate", "ftruncate", "pwrite"}
)
SPEAKS = frozenset({"socket.send", "socket.sendall"})  # what is received changes nothing anywhere


def is_boundary(called) -> bool:
    """Whether a C function writes to a file, changes a folder, or sends."""
    name = getattr(called, "__qualname__", "")
    if getattr(called, "__module__", None) == "posix":
        return name in CHANGES
    return name in SPEAKS or name in ("FileIO.write", "BufferedWriter.write", "BufferedRandom.write")


def killed_at(count: int, work) -> bool:
    """Do ``work`` in a forked child that dies at its boundary number ``count``; return whether it came to its end."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return False
        assert os.WEXITSTATUS(status) == 0, "the child failed by itself, see its traceback"
        return True
    left = [count]

    def trace(frame, event, called):
        if event in ("c_call", "c_return") and is_boundary(called):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        threading.setprofile(trace)
        sys.setprofile(trace)
        work()
        sys.setprofile(None)
        code = 0
    except BaseException:
        sys.setprofile(None)
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def small(parent: Path, step: int, **more) -> Path:
    """A checkpoint of two files whose bytes no other has."""
    folder = parent / manifest.folder_name(step)
    folder.mkdir(parents=True)
    (folder / "0.distcp").write_bytes(b"".join(step.to_bytes(4, "little") + bytes(60) for _ in range(96)))
    (folder / "index").write_bytes(os.urandom(100))
    manifest.write(folder, step=step, tokens=step, purpose="periodic", world=8, config_digest="", **more)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def tmp_path(tmp_path):
    """In memory where that can be: the fsyncs of thousands of deaths are traced all the same."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="scaleup_kills.") as folder:
        yield Path(folder)


@pytest.fixture(params=["folder", "s3"])
def place(request, tmp_path, server, monkeypatch):
    """Return a function that gives new settings of an empty store with a name."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    changes = {"chunk_mib": 4 * KIB, "parallel": 1, "coding": "delta", "full_every": 3}
    if request.param == "folder":
        return lambda name: folder_settings(tmp_path / name, **changes)
    return lambda name: s3_settings(
        server, prefix=f"{request.node.name}/{name}".replace("[", "_").strip("]"), **changes
    )


def whole_or_absent(series, step):
    """Assert that a checkpoint is not visible, or visible and whole; return which."""
    if step not in series.steps():
        return False
    assert problems(series, step) == [], f"step {step} is visible and not whole"
    return True


def all_whole(series):
    return all(problems(series, step) == [] for step in series.steps())


def test_a_put_killed_at_every_boundary_leaves_it_whole_or_absent_and_is_gone_on_with(place, tmp_path):
    series, settings = series_of(place("store")), place("store")
    put(series, small(tmp_path / "here", 1))
    dying = series_of(settings)  # used by children only, so each makes connections of its own
    seen, ended = [], False
    while not ended:
        step = len(seen) + 2
        folder = small(tmp_path / "here", step)
        ended = killed_at(len(seen) + 1, lambda: put(dying, folder))  # noqa: B023  # called at once
        seen.append(whole_or_absent(series, step))
        put(series, folder)
        assert whole_or_absent(series, step)
        if step % 8 == 0 or ended:
            assert all_whole(series)
            keep.prune(series, keep=3)
    assert seen[0] is False and seen[-1] is True
    assert seen.count(False) > 15, "fewer boundaries before the pointer than a put has"
    assert contents(fetch(series, step, tmp_path / "there")) == contents(folder)
    needed = {part.object for step in series.steps() for part in series.stored_manifest(series.pointer(step)).chunks}
    assert set(series.stored_chunks()) == needed, "what the killed ones left is swept"


def test_pruning_and_putting_aside_killed_at_every_boundary_break_no_checkpoint_that_is_kept(tmp_path):
    series, count, ended, step = series_of(folder_settings(tmp_path / "store", parallel=1)), 0, False, 0

    def work():
        keep.prune(series, keep=2)
        keep.quarantine(series, step, problems(series, step))

    while not ended:
        count += 1
        for _ in range(2 if series.steps() else 3):
            step += 1
            put(series, small(tmp_path / "here", step))
        ended = killed_at(count, work)
        assert all_whole(series)
        keep.prune(series, keep=2)
        assert step - 1 in series.steps() and all_whole(series)
    assert count > 10


def test_a_copy_to_the_second_region_killed_at_every_boundary_is_whole_or_absent_there(place, tmp_path):
    here, there = series_of(place("here")), series_of(place("there"))
    source, target = series_of(place("here")), series_of(place("there"))  # used by children only
    count, ended = 0, False
    while not ended:
        count += 1
        put(here, small(tmp_path / "made", count))
        ended = killed_at(count, lambda: replicate.copy(source, target, count))  # noqa: B023  # called at once
        whole_or_absent(there, count)
        replicate.copy(here, there, count)
        assert whole_or_absent(there, count)
        if count % 8 == 0 or ended:
            assert all_whole(there)
            keep.prune(here, keep=2)
            keep.prune(there, keep=2)
    assert count > 15
    assert contents(fetch(there, count, tmp_path / "back")) == contents(tmp_path / "made" / manifest.folder_name(count))


def test_a_fetch_killed_at_every_boundary_shows_no_half_checkpoint(tmp_path):
    series = series_of(folder_settings(tmp_path / "store", parallel=1))
    folder = small(tmp_path / "here", 7)
    put(series, folder)
    count, ended = 0, False
    while not ended:
        count += 1
        into = tmp_path / f"there_{count}"
        ended = killed_at(count, lambda: fetch(series, 7, into))  # noqa: B023  # called at once
        for visible in into.glob("step_*"):
            assert contents(visible) == contents(folder)
        fetch(series, 7, into)
        assert [path.name for path in into.iterdir()] == ["step_00000007"]
    assert count > 20
    with pytest.raises(Absent):
        fetch(series, 8, tmp_path / "none")


def test_what_the_tracing_counts_is_what_it_should():
    """The proof stands on this list: a put calls each of these, and no write escapes under another name."""
    counted = set()

    def trace(frame, event, called):
        if event == "c_call" and is_boundary(called):
            counted.add(called.__name__)

    sys.setprofile(trace)
    try:
        Path("/dev/null").open("wb", buffering=0).close()
        with open(os.devnull, "wb", buffering=0) as file:
            file.write(b"x")
    finally:
        sys.setprofile(None)
    assert counted == {"write"}
    assert dataclasses.is_dataclass(folder_settings(Path("x")))
