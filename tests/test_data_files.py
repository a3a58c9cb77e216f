"""Token files: what is read is what was written, across files and documents; what changed is named, not read past."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from training import data, token_index
from training.config import ConfigError, Data, DataError, DataSource
from training.data import documents
from training.data.tokens import Joined
from training.token_index import FileSums, PartIndex, TokenIndex

VOCABULARY = 70_000


def written(folder: Path, tokens: dict[str, np.ndarray], ends: dict[str, list[int]], vocabulary: int) -> Path:
    """Write a folder of tokens as ``scaleup tokenize`` does."""
    folder.mkdir(parents=True)
    dtype = token_index.smallest_dtype(vocabulary)
    parts = {}
    for name, values in tokens.items():
        values.astype(dtype).tofile(folder / f"{name}.bin")
        np.array(ends[name], dtype="<i8").tofile(folder / f"{name}.ends")
        sums = [token_index.sums(folder / f"{name}.{kind}") for kind in ("bin", "ends")]
        parts[name] = PartIndex(len(values), len(ends[name]), *sums)
    token_index.write(folder, TokenIndex(dtype, vocabulary, {"name": "bytes", "sha256": None}, None, parts))
    return folder


def folder(root: Path, name: str = "web", vocabulary: int = VOCABULARY, seed: int = 0) -> Path:
    """Write a folder of 10,000 random tokens in documents of 100, and 2,000 held out."""
    draw = np.random.default_rng(seed)
    tokens = {part: draw.integers(0, vocabulary, many) for part, many in (("train", 10_000), ("held_out", 2_000))}
    return written(root / name, tokens, {p: [*range(100, len(t) + 1, 100)] for p, t in tokens.items()}, vocabulary)


def megatron(path: Path, lengths: list[int], firsts: list[int], code: int = 8, dtype: str = "<u2") -> np.ndarray:
    """Write ``path``.bin and .idx as Megatron lays them out; return the tokens."""
    tokens = np.random.default_rng(1).integers(0, 1000, sum(lengths)).astype(dtype)
    tokens.tofile(path.with_suffix(".bin"))
    pointers = (np.cumsum([0, *lengths[:-1]]) * tokens.itemsize).astype("<i8")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(firsts))
    arrays = np.array(lengths, "<i4").tobytes() + pointers.tobytes() + np.array(firsts, "<i8").tobytes()
    path.with_suffix(".idx").write_bytes(head + arrays)
    return tokens


def opened(*sources: DataSource, vocabulary: int = VOCABULARY, **settings) -> data.Dataset:
    return data.open_dataset(Data(sources, **settings), vocabulary)


@pytest.mark.parametrize("vocabulary", [1000, VOCABULARY])
def test_samples_are_the_tokens_that_were_written(tmp_path, vocabulary):
    path = folder(tmp_path, vocabulary=vocabulary)
    tokens = np.fromfile(path / "train.bin", "<u2" if vocabulary == 1000 else "<u4").astype(np.int64)
    assert tokens.max() > (900 if vocabulary == 1000 else 2**16), "the test has tokens of every size"
    stream = opened(DataSource(str(path)), vocabulary=vocabulary).stream(64, seed=1)
    windows = data.Stream(torch.from_numpy(tokens), 64, seed=1).window_numbers(0, 300)
    for window, sample in zip(windows.tolist(), stream.samples(0, 300), strict=True):
        assert sample.tolist() == tokens[window * 64 : window * 64 + 65].tolist()
    held_out = opened(DataSource(str(path)), vocabulary=vocabulary).held_out(16, 64)
    assert held_out.shape == (16, 65)
    assert torch.equal(held_out, opened(DataSource(str(path)), vocabulary=vocabulary).held_out(16, 64))


@pytest.mark.parametrize(("code", "dtype"), [(8, "<u2"), (4, "<i4"), (1, "u1"), (5, "<i8"), (3, "<i2")])
def test_megatrons_files_are_read_with_their_documents(tmp_path, code, dtype):
    lengths = [30, 50, 20, 100, 40]
    tokens = megatron(tmp_path / "x", lengths, [0, 2, 3, 5], code, dtype)
    megatron(tmp_path / "held", [500], [0, 1], code, dtype)
    dataset = opened(DataSource(str(tmp_path / "x"), held_out=str(tmp_path / "held.bin")))
    (source,) = dataset.sources
    assert source.train.cut(torch.tensor([0, 200]), 40).tolist() == [tokens[:40].tolist(), tokens[200:240].tolist()]
    found = source.train.documents(torch.tensor([0]), 240)[0]
    assert torch.bincount(found).tolist() == [80, 20, 140], "documents begin with sequences 0, 2 and 3"


def test_a_flat_file_needs_its_type_and_a_held_out_one(tmp_path):
    tokens = np.arange(1000, dtype="<u2")
    tokens.tofile(tmp_path / "train.bin")
    tokens.tofile(tmp_path / "val.bin")
    train, val = str(tmp_path / "train.bin"), str(tmp_path / "val.bin")
    dataset = opened(DataSource(train, held_out=val, dtype="uint16"), vocabulary=1000)
    assert sorted(dataset.stream(9, 1).samples(0, 111)[:, 0].tolist()) == list(range(0, 999, 9))
    with pytest.raises(ConfigError, match=r"train\.bin has no index train\.idx; say its dtype"):
        opened(DataSource(train, held_out=val))
    with pytest.raises(ConfigError, match=r"train\.bin is one part; say which file is held_out"):
        opened(DataSource(train, dtype="uint16"))
    with pytest.raises(ConfigError, match=r"is also its own held-out part"):
        opened(DataSource(train, held_out=train, dtype="uint16"))
    few = opened(DataSource(train, held_out=val, dtype="uint16"), vocabulary=500)
    with pytest.raises(DataError, match=r"train\.bin holds the token [5-9]\d\d, and model\.vocabulary is 500"):
        few.stream(9, 1).samples(0, 111)


def test_sequences_straddle_files(tmp_path):
    parts = [folder(tmp_path, f"part_{number}", seed=number) for number in range(3)]
    dataset = opened(DataSource(str(tmp_path / "part_*")))
    whole = np.concatenate([np.fromfile(part / "train.bin", "<u4") for part in parts]).astype(np.int64)
    windows = data.Stream(torch.from_numpy(whole), 96, seed=1).window_numbers(0, 312)
    samples = dataset.stream(96, seed=1).samples(0, 312)
    assert sorted(windows.tolist()) == list(range(312)), "every window, those across 10,000 and 20,000 among them"
    for window, sample in zip(windows.tolist(), samples, strict=True):
        assert sample.tolist() == whole[window * 96 : window * 96 + 97].tolist()
    assert len(dataset.sources[0].held_out) == 6000
    ids = dataset.sources[0].train.documents(torch.tensor([9_950]), 100)[0]
    assert (ids[50:] != ids[0]).all() and (ids[:50] == ids[0]).all(), "the end of a file ends a document"


def test_more_than_two_files_under_one_sample():
    rows = [data.stream.InMemory(torch.arange(first, first + 3)) for first in (0, 3, 6, 9)]
    assert Joined(rows).cut(torch.tensor([1, 4]), 8).tolist() == [list(range(1, 9)), list(range(4, 12))]


DAMAGES = {
    "cut short": (lambda path: os.truncate(path, 39_000), r"train\.bin was cut short: it has 39000 bytes, its index"),
    "grown": (lambda path: path.write_bytes(path.read_bytes() + b"1234"), r"train\.bin has grown: it has 40004 bytes"),
    "changed": (
        lambda path: path.write_bytes(b"\1" + path.read_bytes()[1:]),
        r"train\.bin has changed since its index",
    ),
    "lost": (lambda path: path.unlink(), r"train\.bin is missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_before_anything_is_read(tmp_path, damage):
    path = folder(tmp_path)
    harm, said = DAMAGES[damage]
    harm(path / "train.bin")
    with pytest.raises(ConfigError, match=said):
        opened(DataSource(str(path)))


def test_an_edited_index_is_named(tmp_path):
    path = folder(tmp_path) / token_index.INDEX
    path.write_text(path.read_text().replace('"tokens": 10000', '"tokens": 9999'))
    with pytest.raises(ConfigError, match=r"index\.json was edited: its fingerprint is not that of the sums"):
        opened(DataSource(str(path.parent)))
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"index\.json is no index of tokens \(KeyError: 'format'\)"):
        opened(DataSource(str(path.parent)))


def test_between_its_samples_a_large_file_is_checked_on_demand(tmp_path, monkeypatch):
    """The choice that the README states: pieces at every start, all of it where somebody asks for it."""
    monkeypatch.setattr(token_index, "READ_WHOLE_BYTES", 1000)
    monkeypatch.setattr(token_index, "PIECES", 4)
    monkeypatch.setattr(token_index, "PIECE_BYTES", 1000)
    path = folder(tmp_path)
    content = bytearray((path / "train.bin").read_bytes())
    content[2000] ^= 1
    (path / "train.bin").write_bytes(content)
    opened(DataSource(str(path)))
    with pytest.raises(ConfigError, match=r"train\.bin has changed since its index was written"):
        opened(DataSource(str(path)), verify="whole")
    content[len(content) - 1] ^= 1
    (path / "train.bin").write_bytes(content)
    with pytest.raises(ConfigError, match=r"train\.bin has changed since its index was written"):
        opened(DataSource(str(path)))


@pytest.mark.parametrize("change", ["cut short", "written into"])
def test_a_file_that_changes_under_a_running_job_is_named_and_not_read(tmp_path, change):
    path = folder(tmp_path)
    stream = opened(DataSource(str(path))).stream(64, seed=1)
    stream.samples(0, 8)
    if change == "cut short":
        os.truncate(path / "train.bin", 4096)  # what lies beyond would be SIGBUS
    else:
        with (path / "train.bin").open("r+b") as file:
            file.write(b"\0")
        os.utime(path / "train.bin", ns=(1, 1))  # whatever the clock's grain
    with pytest.raises(DataError, match=r"train\.bin changed while this job reads it: "):
        stream.samples(8, 8)


IDX_DAMAGES = {
    "no magic": (lambda raw: b"X" + raw[1:], r"x\.idx is no Megatron index: it begins with"),
    "cut short": (lambda raw: raw[:-9], r"x\.idx was cut short: \d+ bytes, its head says \d+"),
    "version": (lambda raw: raw[:9] + b"\2" + raw[10:], r"x\.idx has version 2 and type 8"),
    "gap": (lambda raw: raw[:34] + b"\x1d" + raw[35:], r"sequence 1 of .*x\.idx does not begin where the one before"),
}


@pytest.mark.parametrize("damage", IDX_DAMAGES)
def test_a_damaged_megatron_index_is_named(tmp_path, damage):
    megatron(tmp_path / "x", [30, 50, 20], [0, 3])
    megatron(tmp_path / "held", [500], [0, 1])
    index = tmp_path / "x.idx"
    harm, said = IDX_DAMAGES[damage]
    index.write_bytes(harm(index.read_bytes()))
    with pytest.raises(ConfigError, match=said):
        opened(DataSource(str(tmp_path / "x.bin"), held_out=str(tmp_path / "held")))


def test_a_bin_that_is_not_its_indexs_is_named(tmp_path):
    megatron(tmp_path / "x", [30, 50, 20], [0, 3])
    megatron(tmp_path / "held", [500], [0, 1])
    os.truncate(tmp_path / "x.bin", 198)
    with pytest.raises(ConfigError, match=r"x\.bin was cut short: it has 198 bytes, x\.idx says 200"):
        opened(DataSource(str(tmp_path / "x"), held_out=str(tmp_path / "held")))


def test_the_fingerprint_is_of_tokens_weights_and_documents_not_of_places(tmp_path):
    one, two = folder(tmp_path / "a"), folder(tmp_path / "a", "other", seed=1)
    again = folder(tmp_path / "b", "renamed")
    mark = opened(DataSource(str(one))).fingerprint
    assert opened(DataSource(str(again))).fingerprint == mark
    assert opened(DataSource(str(two))).fingerprint != mark
    both = [opened(DataSource(str(one), w), DataSource(str(two))).fingerprint for w in (1.0, 2.0)]
    cut = opened(DataSource(str(one)), documents="cut").fingerprint
    assert len({mark, *both, cut}) == 4
    skipping = opened(DataSource(str(one)), skip_samples=((5, 9),), verify="whole", prefetch_steps=0)
    assert skipping.fingerprint == mark, "what is left out is compared by its place, not by the fingerprint"


def test_the_held_out_set_is_shared_by_weight(tmp_path):
    one, two = folder(tmp_path, "one"), folder(tmp_path, "two", seed=1)
    dataset = opened(DataSource(str(one), 1.0), DataSource(str(two), 2.0))
    samples = dataset.held_out(10, 64)
    alone = opened(DataSource(str(two))).held_out(7, 64)
    assert torch.equal(samples[3:], alone)
    with pytest.raises(ConfigError, match=r"held_out\.sequences: 100 of .*one is more than the 31"):
        dataset.held_out(300, 64)


def test_boundaries_give_positions_weights_and_a_mask():
    ids = torch.tensor([[4, 4, 4, 5, 5, 6]])
    assert documents.positions(ids).tolist() == [[0, 1, 2, 0, 1, 0]]
    assert documents.loss_weights(ids).tolist() == [[1, 1, 0, 1, 0]]
    mask = documents.attention_mask(ids)
    assert mask.shape == (1, 1, 5, 5)
    assert mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 1, 1],
    ]


def test_the_stream_knows_documents_of_each_sample(tmp_path):
    one, two = folder(tmp_path, "one"), folder(tmp_path, "two", seed=1)
    stream = opened(DataSource(str(one)), DataSource(str(two))).stream(64, seed=1)
    ids = stream.documents(0, 50)
    numbers = stream.streams[0].window_numbers(0, 50) * 64, stream.streams[1].window_numbers(0, 50) * 64
    source = stream.mixture.sources(0, 50).tolist()
    seen = [0, 0]
    for row, which in enumerate(source):
        start = int(numbers[which][seen[which]])
        assert ids[row].tolist() == [(start + place) // 100 for place in range(65)]
        seen[which] += 1


def test_cutting_at_documents_needs_their_ends(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.documents: cut needs to know where documents end"):
        opened(DataSource("stdlib"), documents="cut")


def test_a_vocabulary_that_is_too_small_and_a_path_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.vocabulary: 500 tokens cannot name 70000 tokens of .*web"):
        opened(DataSource(str(folder(tmp_path))), vocabulary=500)
    with pytest.raises(ConfigError, match=r"nothing matches '/nowhere/\*'"):
        opened(DataSource("/nowhere/*"))
    with pytest.raises(ConfigError, match=r"remove held_out and dtype"):
        opened(DataSource(str(tmp_path / "web"), held_out="x"))
    with pytest.raises(ConfigError, match="synthetic samples stand alone"):
        Data((DataSource("stdlib"), DataSource("synthetic")))


def test_sums_stand_for_size_and_content(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert token_index.sums(tmp_path / "x") == FileSums(
        3,
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        token_index.sampled_sha256(tmp_path / "x"),
    )
