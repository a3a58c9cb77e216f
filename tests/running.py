"""What tests of running jobs share: waiting for other processes, running our functions in processes to be killed."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent


def until(condition, seconds=30.0):
    """Wait for another process's doing, of which no event tells; return the condition's answer."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return answer


def records(stage):
    """Return the text of a stage's metrics, empty where there are none yet."""
    return stage.metrics.read_text() if stage.metrics.exists() else ""


def steps(stage):
    """Return the step numbers in a stage's metrics, in the order written."""
    from tasks.records import follow

    found, _ = follow(stage.metrics, 0)
    return [r["step"] for r in found if r.get("kind", "step") == "step"]


def state_of(stage):
    """Return the state of the stage's newest job."""
    from tasks.launch import job_of, launcher_of
    from tasks.run import plan_of

    return launcher_of(plan_of(stage)).poll(job_of(stage)).state


def look_to_the_end(stage):
    """Look until the stage is done; return the last look."""
    from tasks.watch import look

    return until(lambda: (seen := look(stage)).done and seen)


def in_process(stage, text, prelude=""):
    """Run ``text`` with ``stage`` at hand in a process of its own, after ``prelude``; return the finished process."""
    program = "\n".join([
        "import sys", "from pathlib import Path", "from tasks.stage_dir import StageDir",
        "stage = StageDir(Path(sys.argv[1]))", textwrap.dedent(prelude), textwrap.dedent(text),
    ])  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", program, str(stage.path)], cwd=ROOT, env=dict(os.environ), text=True,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
    )  # fmt: skip


KILL_AT = """
import os, signal
from tasks.launchers import local_supervisor

def after(module, name, count):
    # Make the count-th call of a function the last thing that this process does.
    real, calls = getattr(module, name), []
    def call(*arguments, **named):
        result = real(*arguments, **named)
        calls.append(name)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(module, name, call)
"""
