"""A table of malformed files, each with the whole message that a user gets."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from config_texts import CLUSTER, EXPERIMENT, NIGHTLY

from tasks import config
from tasks.config.nightly import load_nightly
from tasks.errors import ConfigInvalid
from tasks.gates import REGISTRY
from tasks.gates.core import OPTIONS
from training.config import OPTIONAL

CASES = yaml.safe_load((Path(__file__).parent / "config_errors.yaml").read_text())
STANDS_FOR = {
    "GATES": sorted(REGISTRY),
    "THRESHOLDS": sorted([*REGISTRY["scaling_efficiency"].thresholds, *OPTIONS]),
    "CAPABILITIES": sorted([*config.CAPABILITIES, *OPTIONAL]),
}


def spoilt(case: dict[str, str]) -> str:
    """Return the malformed text of a case."""
    if "text" in case:
        return case["text"]
    whole = {"experiment": EXPERIMENT, "cluster": CLUSTER, "nightly": NIGHTLY}[case["file"]]
    assert case["replace"] in whole, "the case spoils nothing"
    return whole.replace(case["replace"], case["by"], 1)


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one sound experiment and its cluster, which is the working folder's ``configs``."""
    folder = tmp_path / "configs"
    for kind, name, text in (("experiments", "x", EXPERIMENT), ("clusters", "c", CLUSTER)):
        (folder / kind).mkdir(parents=True)
        (folder / kind / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALEUP_CONFIGS", str(folder))
    return folder


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_each_malformed_file_earns_its_message(configs: Path, case: dict[str, str]) -> None:
    places = {"experiment": "experiments/x.yaml", "cluster": "clusters/c.yaml", "nightly": "nightly.yaml"}
    (configs / places[case["file"]]).write_text(spoilt(case))
    with pytest.raises(ConfigInvalid) as raised:
        if case["file"] == "nightly":
            load_nightly()
        config.load_experiment("x")  # loads its cluster as well
    expected = case["says"].rstrip("\n")
    for word, names in STANDS_FOR.items():
        expected = expected.replace(f" are {word}", f" are {', '.join(names)}")
    assert str(raised.value) == expected


def test_the_table_is_of_different_files() -> None:
    assert len({(case["file"], spoilt(case)) for case in CASES}) == len(CASES) >= 30


def test_the_unspoilt_texts_are_sound(configs: Path) -> None:
    assert [stage.name for stage in config.load_experiment("x").stages] == ["gpus_8", "gpus_64", "gpus_1000"]


def test_an_experiment_that_is_not_there_is_answered_with_those_that_are(configs: Path) -> None:
    with pytest.raises(ConfigInvalid) as raised:
        config.load_experiment("y")
    assert str(raised.value) == (
        "configs/experiments/y.yaml does not exist: unknown experiment 'y'; the only experiment is x"
    )


def test_a_name_that_no_dag_could_bear_is_refused(configs: Path) -> None:
    (configs / "experiments" / "My-Run.yaml").write_text(EXPERIMENT)
    with pytest.raises(ConfigInvalid) as raised:
        config.load_experiment("My-Run")
    assert str(raised.value) == (
        "configs/experiments/My-Run.yaml is not a valid experiment:\n"
        "  file: the file's name is the experiment's name and may hold a-z, 0-9 and _ only, not 'My-Run'"
    )


def test_an_error_in_an_extended_file_says_what_it_extends(configs: Path) -> None:
    (configs / "experiments" / "y.yaml").write_text("extends: x\nseed: -1\n")
    with pytest.raises(ConfigInvalid) as raised:
        config.load_experiment("y")
    assert str(raised.value) == (
        "configs/experiments/y.yaml (extends x) is not a valid experiment:\n  seed: must be at least 0, not -1"
    )


def test_one_incomplete_stage_in_the_place_of_all_is_not_called_none(configs: Path) -> None:
    (configs / "experiments" / "y.yaml").write_text("extends: x\nstages:\n  - gpus: 8\n    hours: 1\n    steps: 50\n")
    with pytest.raises(ConfigInvalid) as raised:
        config.load_experiment("y")
    assert str(raised.value) == (
        "configs/experiments/y.yaml (extends x) is not a valid experiment:\n"
        "  stages.0.batch_sequences: is missing (sequences a step, or a list of {sequences, from_tokens})\n"
        "  stages.0.learning_rate: is missing (a number, or {rule: sqrt, from: gpus_8})\n"
        "  stages.0.gates: is missing (what must hold, for example finite_loss:)"
    )


def test_a_broken_base_is_named_itself(configs: Path) -> None:
    (configs / "experiments" / "x.yaml").write_text("seed: 1\nseed: 2\n")
    (configs / "experiments" / "y.yaml").write_text("extends: x\n")
    with pytest.raises(ConfigInvalid, match=r"^configs/experiments/x.yaml is not a valid experiment:\n  line 2: key"):
        config.load_experiment("y")


def test_bytes_that_are_no_text(configs: Path) -> None:
    (configs / "experiments" / "x.yaml").write_bytes(b"seed: \xff\n")
    with pytest.raises(ConfigInvalid) as raised:
        config.load_experiment("x")
    assert str(raised.value) == (
        "configs/experiments/x.yaml is not a valid experiment:\n  file: is not UTF-8 text (byte 6)"
    )


def test_a_real_stage_cannot_continue_a_rehearsed_one(configs: Path) -> None:
    real = CLUSTER.replace("emulated: true", "emulated: false")
    (configs / "clusters" / "h100.yaml").write_text(real)
    text = EXPERIMENT.replace("    tokens: 500_000", "    tokens: 500_000\n    cluster: h100")
    (configs / "experiments" / "x.yaml").write_text(text)
    with pytest.raises(ConfigInvalid) as raised:
        config.load_experiment("x")
    remedy = "write start: scratch or choose clusters of one kind"
    assert str(raised.value) == (
        "configs/experiments/x.yaml is not a valid experiment:\n"
        f"  stages.1.cluster: gpus_64 is real on h100 and cannot continue where gpus_8 is rehearsed on c; {remedy}\n"
        f"  stages.2.cluster: gpus_1000 is rehearsed on c and cannot continue where gpus_64 is real on h100; {remedy}"
    )
