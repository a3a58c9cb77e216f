"""Services as processes: up when they answer, mended when they die, and gone with everything they started."""

import json
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import textwrap
from contextlib import closing
from importlib.metadata import version

import psutil
import pytest

from tasks.services import airflow, ports, process
from tasks.services.database import bring_to, is_current
from tasks.services.interruption import Interrupted, Interruption
from tasks.services.process import Running, Service, ServiceFailed
from tasks.services.together import Together, only_one

# Listens, and starts a child in a process group of its own, as Airflow does with each task.
SERVER = """
    import os, signal, socket, subprocess, sys, time
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], process_group=0)
    server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    print("child", child.pid, flush=True)
    while True:
        server.accept()[0].close()
"""


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def server(name="server", *arguments):
    port = ports.free_port()
    command = (sys.executable, "-S", "-c", textwrap.dedent(SERVER), str(port), *arguments)
    return Service(name, command, dict(os.environ), lambda since: answers(port), port)


@pytest.fixture
def together(scaleup_home):
    made = Together([])
    yield made
    process.stop(made.running.values(), grace_seconds=0.2)


def gone(pid):
    """Say whether a process has ended; whoever inherits it here may be slow to bury it."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def child_of(service):
    return int(service.log.read_text().split("child ")[-1].split()[0])


def test_a_service_goes_with_everything_it_started(together):
    service = server()
    together.services = [service]
    together.start()
    child = child_of(service)
    running = together.running["server"]
    assert os.getpgid(child) == child and {p.pid for p in running.members()} == {running.pid, child}
    together.stop()
    assert gone(child) and not running.members()
    assert ports.is_free(service.port) and not service.record.exists()


def test_what_ignores_sigterm_is_killed(together):
    together.services = [server("deaf", "stubborn")]
    together.start()
    running = together.running["deaf"]
    process.stop([running], grace_seconds=0.3)
    assert not running.members()


def test_a_killed_service_is_started_again_and_its_orphans_end(together):
    service = server()
    together.services, said = [service], []
    together.tell = said.append
    together.start()
    first, orphan = together.running["server"], child_of(service)
    os.kill(first.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(first.pid)] if psutil.pid_exists(first.pid) else [], timeout=5)
    assert together.mend() == ["server"]
    together.wait_healthy(20)
    assert gone(orphan)
    assert together.running["server"].pid != first.pid and "server died and is started again" in said


def test_what_dies_again_and_again_is_given_up(together):
    together.services = [Service("hopeless", (sys.executable, "-S", "-c", ""), dict(os.environ), lambda since: False)]
    together.launch_all()
    with pytest.raises(ServiceFailed, match="hopeless died again and again"):
        for _ in range(100):
            psutil.wait_procs(together.running["hopeless"].members(), timeout=5)
            together.mend()


def test_a_service_that_cannot_start_shows_its_last_words(together):
    program = (sys.executable, "-S", "-c", "raise SystemExit('no database here')")
    together.services = [Service("broken", program, dict(os.environ), lambda since: False)]
    with pytest.raises(ServiceFailed, match=r"(?s)broken ended while starting.*no database here"):
        together.start()


def test_a_taken_port_is_named_with_its_holder(together):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert not ports.is_free(port)
        assert ports.holder(port).startswith(f"process {os.getpid()} (")
        together.services = [Service("late", ("true",), {}, lambda since: True, port)]
        with pytest.raises(ServiceFailed, match=f"port {port} is taken by process {os.getpid()}"):
            together.start()


def test_a_number_given_to_another_process_is_not_ended(scaleup_home):
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as other:
        earlier = Running("server", other.pid, psutil.Process(other.pid).create_time() - 3600)
        assert not earlier.alive and earlier.members() == []
        process.stop([earlier], grace_seconds=0.1)
        assert other.poll() is None
        other.communicate(b"\n")


def test_two_demos_of_one_home_exclude_each_other(scaleup_home):
    program = "from tasks.services.together import only_one\nwith only_one(): pass"
    with only_one():
        second = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "a demo already runs from" in second.stderr
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_what_is_waited_for_is_told_until_it_is_there_or_given_up(together):
    service, told, looks = server(), [], []
    together.services, together.waiting = [service], told.append
    together.launch_all()
    together.wait_for(service, lambda: looks.append(1) or len(looks) > 2)
    assert [line[:8] for line in told] == ["server, ", "server, ", ""]
    with pytest.raises(ServiceFailed, match="server: no answer after 0 s"):
        together.wait_for(service, lambda: False, seconds=0.0)
    assert told[-1] == ""  # a line that is redrawn would hide the error


def test_airflow_s_own_command_runs_behind_ours(scaleup_home):
    program = [sys.executable, "-m", "tasks.services.airflow_main", "version"]
    said = subprocess.run(program, capture_output=True, text=True, env=airflow.environment("", 18080), timeout=60)
    assert said.stdout.split()[-1] == version("apache-airflow"), said.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_waits_for_the_shield(number):
    reached = []
    with Interruption() as interruption, pytest.raises(Interrupted):
        with interruption.shield():
            os.kill(os.getpid(), number)
            reached.append("in the shield")
        reached.append("behind it")
    assert reached == ["in the shield"]


def test_the_end_is_not_interrupted():
    with Interruption() as interruption:
        interruption.ignore()
        os.kill(os.getpid(), signal.SIGINT)


def test_airflow_listens_here_alone_and_keeps_its_secrets(scaleup_home, monkeypatch):
    settings = airflow.settings(18080)
    assert settings["api"]["host"] == "127.0.0.1"
    assert settings == airflow.settings(18080)  # keys are made once
    kept = airflow.folder() / "secrets.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert set(json.loads(kept.read_text())) == {"fernet_key", "jwt_secret", "secret_key"}
    monkeypatch.setenv("AIRFLOW__API__HOST", "0.0.0.0")
    assert not any(key.startswith("AIRFLOW__") for key in airflow.environment("", 18080))
    for service in airflow.services(18080, "http://127.0.0.1:15000"):
        assert "0.0.0.0" not in " ".join(service.command)
        assert service.name != "airflow-scheduler" or "--skip-serve-logs" in service.command


def table(text):
    def make(path):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(text)

    return make


def rows(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("select * from t").fetchall()


def interrupted(path):
    table("create table half (x)")(path)
    raise Interrupted


def test_a_database_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "some.db"
    with pytest.raises(Interrupted):
        bring_to(path, "1", interrupted)
    assert not path.exists() and not is_current(path, "1")
    bring_to(path, "1", table("create table t (x); insert into t values (1)"))
    with closing(sqlite3.connect(path)) as writer, writer:  # whose journal is still beside the file
        writer.execute("insert into t values (2)")
        writer.commit()
        with pytest.raises(Interrupted):
            bring_to(path, "2", interrupted)
        assert rows(path) == [(1,), (2,)] and not is_current(path, "2")
        bring_to(path, "2", table("alter table t add column y"))
    assert rows(path) == [(1, None), (2, None)] and is_current(path, "2")
    bring_to(path, "2", interrupted)  # nothing to do
