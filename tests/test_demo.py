"""The demo before and after its services: what stands in the way is one sentence, what it shows comes from folders."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from running import state_of, steps, until

from tasks import demo
from tasks.demo import preflight as demo_preflight
from tasks.demo.follow import follow
from tasks.demo.preflight import NotReady
from tasks.errors import ConfigInvalid
from tasks.ladder_outcome import outcome
from tasks.launch import launch
from tasks.patience import failed_by_hand
from tasks.run import open_run
from tasks.services import ports
from tasks.services.airflow_api import AirflowUnreachable
from tasks.stage_dir import write_json
from tasks.terminal.ladder_view import Lines, render, table

ROOT = Path(__file__).parent.parent


def shown(thing, width=200):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(thing)
    return capture.get()


def check(name, passed=True, reason="it is as it should be"):
    return {"gate": name, "outcome": "PASS" if passed else "FAIL", "reason": reason}


# --- before anything is started ----------------------------------------------------------------------------------


def test_a_taken_port_is_named_with_its_holder_and_the_way_out(configs):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        holder = f"process {os.getpid()} ({psutil.Process().name()})"
        with pytest.raises(NotReady) as said:
            demo_preflight.check("tiny", port, ports.free_port())
    assert str(said.value) == (
        f"port {port} is taken by {holder}; end that, or choose another port: make demo AIRFLOW_PORT={port + 1}"
    )


def test_one_port_for_two_servers_is_refused(configs):
    port = ports.free_port()
    with pytest.raises(NotReady, match=f"cannot both listen on port {port}"):
        demo_preflight.check("tiny", port, port)


def test_a_full_disk_is_said_with_the_folder(configs, monkeypatch):
    monkeypatch.setattr(demo_preflight, "NEEDED_GIB", 1e9)
    with pytest.raises(NotReady, match=r"has .* GiB free and the demo needs 1e\+09; make room"):
        demo_preflight.check("tiny", ports.free_port(), ports.free_port())


def test_an_unknown_experiment_is_answered_with_the_known_ones(configs):
    with pytest.raises(ConfigInvalid, match="tiny"):
        demo_preflight.check("gpt_stdlub", ports.free_port(), ports.free_port())


def test_nothing_is_left_where_the_demo_cannot_start(configs, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = ["tiny", "--airflow-port", str(taken.getsockname()[1]), "--mlflow-port", str(ports.free_port())]
        assert demo.main(arguments) == 1
    assert "is taken by" in capsys.readouterr().out
    assert not list((Path(os.environ["SCALEUP_HOME"]) / "services").glob("*.json"))


@pytest.mark.parametrize("said, keep", [([], True), (["--no-keep"], False), (["--keep"], True)])
def test_keep(said, keep, monkeypatch):
    monkeypatch.delenv("KEEP", raising=False)
    assert demo.parser().parse_args(said).keep is keep
    monkeypatch.setenv("KEEP", "0")
    assert demo.parser().parse_args(said).keep is (keep and bool(said))


# --- the installation ----------------------------------------------------------------------------------------------


def install(tmp_path, what="run", path="", **variables):
    """Run .ci/install with a virtual environment of its own; return its exit code and what it said."""
    environment = os.environ | {"VENV": str(tmp_path / "venv"), "PATH": f"{path}{os.environ['PATH']}"} | variables
    done = subprocess.run(
        [ROOT / ".ci" / "install", what], env=environment, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stderr


def program(tmp_path, name, text):
    """Write a shell script that stands in for one of the machine's programs; return its folder as a PATH prefix."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    file = tmp_path / "bin" / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return f"{tmp_path}/bin:"


def test_a_python_that_is_too_old_is_named(tmp_path):
    program(tmp_path, "python3.9", '[ "$1" = --version ] && echo Python 3.9.2; exit 1')
    old = f"{tmp_path}/bin/python3.9"
    code, said = install(tmp_path, PYTHON=old)
    assert (code, said) == (1, f"scaleup: PYTHON={old} is Python 3.9.2; Python 3.11 or newer is needed\n")


def test_a_disk_without_room_is_said_before_anything_is_made(tmp_path):
    path = program(tmp_path, "df", "echo Filesystem; echo /dev/x 100 90 2048000 1% /")
    code, said = install(tmp_path, path=path)
    assert code == 1 and said.startswith("scaleup: installing needs 4 GiB of disk and ")
    assert said.endswith("has 2000 MiB; make room and run make again\n")
    assert not (tmp_path / "venv").exists()


def test_no_network_is_one_sentence(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    index = f"http://127.0.0.1:{port}/simple"
    variables = {"PIP_INDEX_URL": index, "PIP_FIND_LINKS": "", "PIP_NO_CACHE_DIR": "1", "PIP_CONFIG_FILE": os.devnull}
    code, said = install(tmp_path, PYTHON=sys.executable, **variables)
    assert code == 1
    assert said == (
        f"scaleup: no network: pip cannot reach the package index; its last words are in {tmp_path}/venv/install.log\n"
    )
    assert not (tmp_path / "venv" / ".installed-run").exists()


def test_make_lists_its_targets():
    said = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(f"make {name} " in said for name in ("demo", "test", "check", "bench", "chaos", "lock", "clean"))


# --- what it shows -------------------------------------------------------------------------------------------------


def test_a_run_is_told_line_by_line_each_change_once(begin):
    stage = begin()
    lines = Lines()
    assert lines.new(stage.run) == ["gpus_8  forecast"]
    launch(stage)
    write_json(stage.watch, {"state": "running", "step": 20, "at": 20, "loss": 1.5, "tokens_per_gpu_second": 1234.5})
    assert lines.new(stage.run) == [
        "gpus_8  step 20/40, loss 1.5000, 1,234 tokens/s/GPU (modelled)",
        "gpus_8  running",
    ]
    assert lines.new(stage.run) == []
    checks = [check("finite_loss"), check("canary", False, "too slow")]
    write_json(stage.verdict, {"outcome": "FAIL", "checks": checks})
    assert lines.new(stage.run) == [
        "gpus_8  PASS            finite_loss: it is as it should be",
        "gpus_8  FAIL            canary: too slow",
        "gpus_8  failed: canary says FAIL: too slow",
    ]


def test_the_table_says_what_is_real_and_what_is_modelled(begin):
    stage = begin()
    said = shown(table(stage.run))
    assert "loss (real)" in said and "tokens/s/GPU (modelled)" in said
    assert "gpus_8" in said and "forecast" in said and "waiting" in said
    write_json(stage.cause, {"cause": "person", "detail": "ada: enough", "time": 0.0})
    assert "it was stopped (person): ada: enough" in shown(render(stage.run))


@pytest.mark.parametrize(
    "written, sentence",
    [
        ({}, "gpus_8 was not promoted: it never started"),
        (
            {"forecast": {"outcome": "FAIL", "checks": [check("budget", False, "too dear")]}},
            "budget says FAIL: too dear",
        ),
        ({"cause": {"cause": "hours", "detail": "its hours were up"}}, "it was stopped (hours): its hours were up"),
        ({"verdict": {"outcome": "PASS", "checks": [check("canary")]}}, "its checkpoint was not promoted"),
        ({"promotion": {"by": "gates"}}, "gpus_64 was not promoted: it never started"),
    ],
)
def test_how_a_ladder_ended(configs, written, sentence):
    run = open_run("tiny", run_id="r", origin={})
    for name, value in written.items():
        write_json(getattr(run.stage("gpus_8"), name), value)
    ended = outcome(run)
    assert not ended.promoted and sentence in ended.sentence


def test_a_ladder_whose_stages_are_all_promoted_has_climbed(configs):
    run = open_run("tiny", run_id="r", origin={})
    for name in ("gpus_8", "gpus_64"):
        write_json(run.stage(name).promotion, {"by": "gates"})
    assert outcome(run).promoted


def test_following_outlives_an_api_server_that_is_away(configs):
    run = open_run("tiny", run_id="r", origin={})
    answers = iter([AirflowUnreachable("it starts again"), "running", "failed"])

    def state():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    looks = []
    with open(os.devnull, "w") as nowhere:
        assert follow(run, state, lambda: looks.append(1), Console(file=nowhere)) == "failed"
    assert len(looks) >= 3


# --- who ended what ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state, tries, exception, by_hand",
    [
        ("failed", [1, 10], None, True),
        ("failed", [10, 10], None, True),
        ("failed", [11, 10], None, False),  # its tries are used up: it may have been killed
        ("failed", [1, 10], "Sensor has timed out", False),
        ("failed", None, None, False),  # it never said which try it was
        ("success", [1, 10], None, False),
        ("upstream_failed", [1, 10], None, False),
        (None, None, None, False),
    ],
)
def test_only_a_person_fails_a_watch_that_has_tries_left(state, tries, exception, by_hand):
    assert failed_by_hand(state, tries, exception) is by_hand


def test_the_end_of_the_demo_ends_airflows_jobs_and_no_others(configs, tmp_path):
    configs.experiment(settings={"wait_at": 20, "wait_for": str(tmp_path / "never")})
    stages = {}
    for run_id, origin in (("clicked", {"dag_id": "scale_up_tiny"}), ("typed", {"command": "scaleup run"})):
        stages[run_id] = open_run("tiny", run_id=run_id, origin=origin).stage("gpus_8")
        write_json(stages[run_id].forecast, {"outcome": "PASS", "checks": []})
        launch(stages[run_id])
        until(lambda stage=stages[run_id]: stage.metrics.exists() and 19 in steps(stage))
    ended = demo.end_jobs()
    assert len(ended) == 1 and "tiny.clicked.gpus_8" in ended[0]
    assert (state_of(stages["clicked"]), state_of(stages["typed"])) == ("cancelled", "running")
    assert demo.end_jobs() == []


def test_a_run_that_a_person_ended_is_not_gone_on_with(configs):
    run = open_run("tiny", run_id="r", origin={})
    assert not demo._was_given_up(run)
    write_json(run.stage("gpus_8").cause, {"cause": "person", "detail": "Ctrl-C"})
    assert demo._was_given_up(run)


LEAVE = """
import os, sys
from tasks.services.process import Service, start
command = (sys.executable, "-S", "-c", "import time; time.sleep(600)")
start(Service("left", command, dict(os.environ), lambda since: True))
os.kill(os.getpid(), 9)
"""


def test_leftovers_of_a_killed_demo_are_ended(scaleup_home):
    assert subprocess.run([sys.executable, "-c", LEAVE], cwd=ROOT).returncode == -signal.SIGKILL
    assert demo_preflight.end_leftovers() == ["left"]
    assert demo_preflight.end_leftovers() == []


# --- nothing is skipped where all must be shown ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "import pytest\n\ndef test_it():\n    pytest.skip('not here')\n",
        "import pytest\n\n@pytest.mark.skip(reason='not here')\ndef test_it():\n    pass\n",
        "import pytest\n\npytest.importorskip('no_such_module_anywhere')\n",
    ],
)
def test_a_skip_fails_where_none_is_allowed(tmp_path, text):
    (tmp_path / "test_skipping.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.strict", "-p", "no:cacheprovider", str(tmp_path)]
    for allowed, codes in (("0", (0, 5)), ("1", (1, 2))):
        done = subprocess.run(command, cwd=ROOT, env=os.environ | {"SCALEUP_NO_SKIP": allowed}, capture_output=True)
        assert done.returncode in codes
