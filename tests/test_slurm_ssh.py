"""The same commands on a login node: OpenSSH's client against a real sshd on loopback."""

import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from launching import LAUNCHERS, end_of, printed, program
from running import until
from slurm import free_ports

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


@pytest.fixture
def launcher(slurm):
    """A launcher whose commands run on a login node: this machine, by ssh, in an environment of its own."""
    if not Path(SSHD).exists():
        pytest.skip("sshd is not installed: apt-get install openssh-server")
    folder, port = Path(tempfile.mkdtemp(prefix="scaleup_sshd_")), str(free_ports(1))  # a socket's path is short
    for name in ("host", "mine"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "mine.pub").rename(folder / "authorized")
    (folder / "config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        "PidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
        f"SetEnv SLURM_CONF={slurm.conf} PATH=/usr/bin:/bin\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "config"], stderr=log)
    try:
        until(lambda: "Server listening" in (folder / "log").read_text())
        chosen = (f"UserKnownHostsFile={folder}/known", "StrictHostKeyChecking=accept-new", f"ControlPath={folder}/%C")
        words = ("-p", port, "-i", str(folder / "mine"), *[word for said in chosen for word in ("-o", said)])
        yield replace(LAUNCHERS["slurm"], ssh=(*words, "127.0.0.1"))
    finally:
        for socket in folder.glob("?" * 40):
            subprocess.run(["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "127.0.0.1"], capture_output=True)
        server.terminate()
        server.wait()
        shutil.rmtree(folder)


def test_a_job_is_submitted_looked_at_and_cancelled_over_one_connection(slurm, launcher, job, monkeypatch):
    monkeypatch.delenv("SLURM_CONF")  # known to the login node alone
    job = program(job, "print('far away', flush=True); import time; time.sleep(600)")
    number = launcher.submit(job)
    until(lambda: "far away" in printed(job))
    assert launcher.poll(job).state == "running" and slurm.jobs(job.name) == [number]
    (host,) = (word for word in launcher.ssh if word.startswith("ControlPath="))
    assert len(list(Path(host.removeprefix("ControlPath=")).parent.glob("?" * 40))) == 1  # one connection for all
    launcher.cancel(job, "enough")
    assert end_of(launcher, job).state == "cancelled"


def test_a_login_node_that_is_away_is_no_answer(launcher, job):
    away = replace(launcher, ssh=("-p", "1", "-o", "ConnectTimeout=5", "127.0.0.1"))
    Path(job.folder).mkdir()
    assert away.poll(job).state == "unknown"
