"""The data in a real job: what records and checkpoints say of it, what may change under a ladder and what may not."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from config_texts import CLUSTER, EXPERIMENT
from trained import order, records, run, span, steps

from tasks import config, tokenize
from tasks.config.as_trained import rehearsed_recipe
from tasks.config.data import is_synthetic, orders
from tasks.config.recipe import Recipe
from tasks.errors import ConfigInvalid
from tasks.gates import REGISTRY
from tasks.gates.core import Evidence, Outcome, StageFacts, judge
from training import data, manifest, train
from training.config import Checkpointing, ConfigError, Data, DataSource, Start, read_config

SPANS = (span(1, 6, 20), span(7, 4, 29))
EVERY_THREE = Checkpointing(every_steps=3, keep=9)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tokens of the test's own text."""
    root = tmp_path_factory.mktemp("tokens")
    lines = (
        json.dumps({"text": "".join(f"def f{m}(x): return x * {n * m % 97}\n" for m in range(9))}) for n in range(400)
    )
    (root / "x.jsonl").write_text("\n".join(lines))
    tokenize.tokenize([str(root / "x.jsonl")], root / "web", tokenizer="bytes", held_out_percent=10)
    return root / "web"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tokens: Path) -> Path:
    """One job on two sources; one without a range of its samples; one on random tokens."""
    root = tmp_path_factory.mktemp("data")
    corpus = order(root / "unused", span(1, 1, 8)).parent / "corpus"
    sources = (DataSource(str(tokens), 3.0), DataSource(str(corpus)))
    for name, said in (
        ("mixed", Data(sources)),
        ("skipping", Data(sources, skip_samples=((60, 80),), prefetch_steps=0)),
        ("synthetic", "synthetic"),
    ):
        order(root / name, *SPANS, data=said, checkpointing=EVERY_THREE)
    ends = run(*(root / name for name in ("mixed", "skipping", "synthetic")))
    assert [end["code"] for end in ends] == [0] * 3, [end["said"] for end in ends]
    return root


def again(runs: Path, name: str, tmp_path: Path, **changes) -> Path:
    """A stage that goes on from step 3 (60 samples) of a finished job, under changed orders."""
    ordered = read_config(runs / name)
    start = Start("continue", str(runs / name / "checkpoints" / manifest.folder_name(3)), 3)
    return order(tmp_path / "next", span(4, 2, 20), start=start, data=changes.get("data", ordered.data))


def test_records_and_checkpoint_say_what_was_read_and_how_far(runs, tokens):
    (header,) = records(runs / "mixed", "header")
    assert header["data"]["sources"][0] == {"path": str(tokens), "weight": 3.0, "held_out": None, "dtype": None}
    assert header["data_tokens"]["train"] > 100_000
    found = manifest.read(runs / "mixed/checkpoints" / manifest.folder_name(3)).extra
    assert (found["cursor"], found["data"]["sample"], found["skip_samples"]) == (60, 60, [])
    taken = [source["samples"] for source in found["data"]["sources"]]
    assert sum(taken) == 60 and abs(taken[0] - 45) <= 3
    later = manifest.read(runs / "skipping/checkpoints" / manifest.folder_name(6)).extra
    assert (later["cursor"], later["data"]["sample"]) == (120, 140)
    assert later["skip_samples"] == [[60, 80]]


def test_until_the_range_that_is_left_out_nothing_differs_and_then_the_rest_comes_earlier(runs):
    whole, skipping = steps(runs / "mixed"), steps(runs / "skipping")
    assert [skipping[n]["loss"] for n in (1, 2, 3)] == [whole[n]["loss"] for n in (1, 2, 3)]
    assert skipping[4]["loss"] != whole[4]["loss"]
    assert skipping[10]["tokens"] == whole[10]["tokens"], "as many samples are learnt from"
    ordered = read_config(runs / "skipping")
    dataset = data.open_dataset(ordered.data, 256)
    one = data.open_dataset(Data(ordered.data.sources), 256).stream(16, ordered.seed)
    assert torch.equal(dataset.stream(16, ordered.seed).samples(60, 156), one.samples(80, 156))


def test_a_range_ahead_may_be_added_or_dropped_under_a_ladder(runs, tmp_path):
    ordered = read_config(runs / "mixed")
    skipping = Data(ordered.data.sources, skip_samples=((60, 80), (200, 300)))
    assert train.prepare(again(runs, "mixed", tmp_path, data=skipping)).resume.checkpoint.step == 3
    assert train.prepare(again(runs, "skipping", tmp_path / "b", data=ordered.data)).resume.checkpoint.step == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"skip_samples": ((10, 20),)}, r"skip_samples: the 60 samples before it left out none, and the orders now say"
         r" \[10, 20\); a range must lie beyond sample 60"),
        ({"documents": "packed", "sources": "swapped"}, r"was written with fingerprint"),
        ({"sources": "weights"}, r"was written with fingerprint"),
    ],
)  # fmt: skip
def test_data_that_changed_under_a_ladder_is_refused(runs, tmp_path, change, said):
    first, second = read_config(runs / "mixed").data.sources
    sources = {
        "swapped": (second, first),
        "weights": (DataSource(first.path, 2.0), second),
    }.get(change.pop("sources", ""), (first, second))
    with pytest.raises(ConfigError, match=said):
        train.prepare(again(runs, "mixed", tmp_path, data=Data(sources, **change)))


def test_a_job_whose_range_changed_behind_it_goes_on_from_the_checkpoint_before(runs):
    """Rolled back by itself: checkpoints that lie beyond the new range are passed over, and named."""
    folder = runs / "mixed"
    config = json.loads((folder / "config.json").read_text())
    config["data"]["skip_samples"] = [[70, 75]]
    (folder / "config.json").write_text(json.dumps(config))
    found = train.prepare(folder).resume
    assert found.checkpoint.step == 3
    assert len(found.unsound) == 3 and all("skip_samples" in said for said in found.unsound)
    config["data"]["skip_samples"] = []
    (folder / "config.json").write_text(json.dumps(config))


def test_synthetic_samples_are_marked_and_teach_nothing(runs):
    (header,) = records(runs / "synthetic", "header")
    assert header["fields"]["loss"] == header["fields"]["grad_norm"] == "synthetic"
    assert header["fields"]["tokens"] == "real"
    assert header["fingerprint"] == "synthetic-uniform-256"
    losses = [record["loss"] for record in steps(runs / "synthetic").values()]
    assert all(abs(loss - np.log(256)) < 0.05 for loss in losses)


@pytest.mark.parametrize("name", sorted(name for name, gate in REGISTRY.items() if gate.judges_learning))
def test_gates_on_the_loss_refuse_synthetic_samples(name):
    import pandas as pd

    facts = StageFacts("gpus_8", 8, 1, True, 1024, 1024, 0, 1, fingerprint="synthetic-uniform-256")
    check = judge(REGISTRY[name], Evidence(facts, pd.DataFrame(), pd.DataFrame()))
    assert check.outcome is Outcome.INVALID
    assert "the samples are synthetic: a loss on random tokens is no evidence" in check.reason


def test_which_gates_judge_what_was_learnt():
    learnt = {name for name, gate in REGISTRY.items() if gate.judges_learning}
    assert {"loss_near_baseline", "stable_loss", "resume_parity", "replay_parity", "too_good"} <= learnt
    assert not {"finite_loss", "steady_throughput", "canary", "memory_headroom"} & learnt


def test_a_recipe_says_its_data_in_a_word_or_a_mapping():
    model = {"layers": 1, "hidden": 8, "heads": 1, "ffn": 8, "vocabulary": 256}
    said = {"sources": ["stdlib", {"path": "/data/web", "weight": 3}], "skip_samples": [4096, 8192]}
    recipe = Recipe(model=model, sequence_length=8, data=said)
    assert orders(recipe.data) == Data((DataSource("stdlib"), DataSource("/data/web", 3)), skip_samples=((4096, 8192),))
    assert orders(Recipe(model=model, sequence_length=8).data) == "stdlib"
    assert Recipe.model_validate(json.loads(recipe.model_dump_json())) == recipe
    assert is_synthetic("synthetic") and not is_synthetic(recipe.data)
    rehearsed = rehearsed_recipe({"data": said}, {"data": {"sources": ["stdlib"]}})
    assert rehearsed["data"] == {"sources": ["stdlib"]}, "what is skipped of one is not of the other"


def test_masks_that_no_layout_has_yet_are_refused(tmp_path, tokens):
    folder = order(tmp_path / "stage", span(1, 1, 8), data=Data((DataSource(str(tokens)),), documents="cut"))
    with pytest.raises(ConfigError, match=r"data\.documents: no layout masks attention at documents' ends yet"):
        train.prepare(folder)


def test_a_gate_on_the_loss_of_synthetic_samples_is_named_before_a_gpu_is_used(tmp_path, monkeypatch):
    for kind, name, text in (("experiments", "x", EXPERIMENT), ("clusters", "c", CLUSTER)):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / f"{name}.yaml").write_text(text.replace("processes: 2", "processes: 2\n  data: synthetic"))
    monkeypatch.setenv("SCALEUP_CONFIGS", str(tmp_path))
    with pytest.raises(ConfigInvalid) as raised:
        config.load_experiment("x")
    assert str(raised.value).splitlines()[1:] == [
        "  stages.1.gates.replay_parity: judges a loss, and rehearsal.data is synthetic: random tokens show nothing; "
        "write replay_parity: dropped"
    ]


def test_orders_survive_the_file_between_pipeline_and_trainer(tmp_path):
    said = Data((DataSource("stdlib"), DataSource("/x", 2, "/y", "uint16")), "cut", ((1, 2), (5, 9)), "whole", 0)
    assert read_config(order(tmp_path / "stage", span(1, 1, 8), data=said)).data == said
