"""The command line: help, exit codes, one sentence a mistake, and what each command prints."""

import importlib
import json
import os
import subprocess
import sys
import time

import pytest
from running import ROOT, state_of, until

from tasks.cli import main, parser
from tasks.launch import launch
from tasks.stage_dir import read_json, write_json


@pytest.fixture
def scaleup(capsys):
    """Run the command line in this process; return (exit code, stdout, stderr)."""

    def call(*arguments):
        try:
            code = main(arguments)
        except SystemExit as left:  # argparse's own way out
            code = left.code
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_help_names_every_command_with_examples(scaleup):
    code, out, _ = scaleup("--help")
    assert code == 0
    for command in ("demo", "run", "status", "validate", "promote", "report"):
        assert f"    {command} " in out
    assert 'scaleup promote latest gpus_64 --because "' in out


@pytest.mark.parametrize("command", ["run", "status", "validate", "promote", "report"])
def test_every_command_explains_itself(scaleup, command):
    code, out, _ = scaleup(command, "--help")
    assert code == 0
    assert out.startswith(f"usage: scaleup {command}")


def test_every_command_of_the_parser_can_be_called():
    (subcommands,) = (a for a in parser()._actions if hasattr(a, "choices") and a.choices)
    for name, command in subcommands.choices.items():
        if name != "demo":
            assert callable(getattr(importlib.import_module(f"tasks.cli.{command.get_default('acts')}"), name))


def test_help_loads_nothing_heavy():
    text = "import sys; from tasks.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    text += "print([m for m in ('pandas', 'pydantic', 'yaml', 'scipy', 'rich', 'mlflow', 'numpy') if m in sys.modules])"
    began = time.monotonic()
    said = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "[]"
    assert time.monotonic() - began < 5.0  # half a second on an idle machine


def test_wrong_usage_is_exit_2(scaleup):
    code, _, err = scaleup("promote", "latest", "gpus_8")
    assert code == 2
    assert "--because" in err


def test_validate_prints_the_resolved_stages(scaleup, configs):
    code, out, _ = scaleup("validate", "tiny")
    assert code == 0
    for said in ("gpus_8", "gpus_64", "continue gpus_8", "finite_loss"):
        assert said in out


def test_validate_names_all_that_is_wrong_in_all_files(scaleup, configs):
    configs.experiment("first", seed=-1)
    configs.experiment("second", cluster="nowhere")
    code, out, err = scaleup("validate")
    assert code == 2
    assert "tiny: " in out
    assert "first.yaml" in err
    assert "second.yaml" in err
    assert "Traceback" not in err


def test_an_unknown_run_is_one_sentence(scaleup, configs):
    code, _, err = scaleup("status", "nothing")
    assert code == 1
    assert err.startswith("scaleup status: 'nothing' is no run; there are no runs in ")
    assert len(err.splitlines()) == 1


def test_status_shows_a_run_as_a_table_and_as_json(scaleup, running):
    stage = running()
    code, out, _ = scaleup("status")
    assert code == 0
    assert "gpus_64" in out
    code, out, _ = scaleup("status", "tiny/run_1", "--json")
    said = json.loads(out)
    assert (said["experiment"], said["run_id"], said["by"]) == ("tiny", "run_1", "a test")
    first, second = said["stages"]
    assert (first["name"], first["job"]["state"], first["job"]["attempt"]) == ("gpus_8", "running", 1)
    assert first["job"]["log"] == str(stage.attempt(1) / "log.txt")
    assert (second["state"], second["job"]) == ("waiting", None)
    assert said["outcome"]["promoted"] is False


def test_promote_promotes_by_name_and_reason(scaleup, begin):
    stage = begin()
    launch(stage)
    until(lambda: state_of(stage) == "succeeded")
    write_json(stage.verdict, {"outcome": "FAIL", "checks": [], "stage": "gpus_8"})
    code, out, _ = scaleup("promote", "latest", "gpus_8", "--because", "a bad node", "--by", "mo")
    assert code == 0
    promotion = read_json(stage.promotion)
    assert out == f"gpus_8 is promoted by mo: a bad node\n{promotion['checkpoint']['path']}\n"
    code, out, _ = scaleup("promote", "latest", "gpus_8", "--because", "again", "--by", "jo")
    assert out.startswith("gpus_8 is promoted by mo: a bad node")


def test_promote_grants_leave_where_the_forecast_said_no(scaleup, begin):
    stage = begin()
    write_json(stage.forecast, {"outcome": "FAIL", "checks": []})
    code, out, _ = scaleup("promote", "run_1", "gpus_8", "--because", "new switches", "--by", "mo")
    assert code == 0
    assert out.splitlines()[0] == "gpus_8 has mo's leave to go on: new switches"
    assert "scaleup run tiny --run-id run_1" in out


def test_an_unknown_stage_is_answered_with_those_there_are(scaleup, begin):
    begin()
    code, _, err = scaleup("promote", "latest", "gpus_9", "--because", "x")
    assert (code, err) == (1, "scaleup promote: tiny/run_1 has no stage 'gpus_9'; its stages are gpus_8, gpus_64\n")


def test_a_closed_pipe_is_no_error(configs):
    """``scaleup validate | head -1``: the reader has enough, and nobody wants a traceback."""
    program = "import sys; from tasks.cli import main; sys.exit(main(['validate', 'tiny']))"
    done = subprocess.run(
        ["bash", "-c", f'set -o pipefail; "{sys.executable}" -c "{program}" | true'],
        cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
