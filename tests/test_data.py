"""One stream whatever the world: every sample once, in an order that a seed alone decides."""

import pytest
import torch

from training import data
from training.config import ConfigError


@pytest.fixture(scope="module")
def library() -> data.Corpus:
    return data.load("stdlib")


@pytest.fixture(scope="module")
def text() -> torch.Tensor:
    return torch.randint(0, 256, (5003,), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))


def test_the_library_is_there_without_tests_and_packages(library):
    assert library.files > 300
    assert len(library.train) > 5_000_000
    assert 0.02 < len(library.held_out) / len(library.train) < 0.12
    train = bytes(library.train.tolist())
    assert b"class OrderedDict" in train or b"class OrderedDict" in bytes(library.held_out.tolist())
    assert b"import pytest" not in train


def test_no_text_is_in_both_parts(tmp_path):
    for number in range(200):
        (tmp_path / f"{number}.py").write_text(f"[{number:05d}]")
    found = data.load(str(tmp_path))
    parts = [bytes(part.tolist()).decode() for part in (found.train, found.held_out)]
    assert sorted("".join(parts)) == sorted("".join(f"[{number:05d}]" for number in range(200)))
    assert 2 <= parts[1].count("[") <= 25
    assert found.files == 200


def test_the_fingerprint_knows_every_byte_and_name_and_nothing_else(tmp_path):
    def fingerprint(files: dict[str, str], name: str) -> str:
        for path, content in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(content)
        return data.load(str(tmp_path / name)).fingerprint

    files = {f"{number}.py": f"x = {number}\n" * 9 for number in range(60)}
    first = fingerprint(files, "a")
    assert fingerprint(files | {"test/x.py": "left out", "data.bin": "left out"}, "b") == first
    assert fingerprint(files | {"7.py": "x = 8\n" * 9}, "c") != first
    renamed = {("new.py" if path == "7.py" else path): content for path, content in files.items()}
    assert fingerprint(renamed, "d") != first


def test_an_epoch_has_every_window_once_and_the_next_another_order(text):
    stream = data.Stream(text, 16, seed=1)
    assert stream.windows == 312
    epochs = stream.window_numbers(0, 624).view(2, 312)
    assert all(sorted(epoch.tolist()) == list(range(312)) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[0], data.Stream(text, 16, seed=2).window_numbers(0, 312))


def test_samples_are_the_text_and_the_byte_that_follows(text):
    stream = data.Stream(text, 16, seed=1)
    for number, sample in zip(stream.window_numbers(40, 5), stream.samples(40, 5), strict=True):
        assert sample.tolist() == text[int(number) * 16 : int(number) * 16 + 17].tolist()


@pytest.mark.parametrize("ranks", [(8, 64, 1000), (8, 64, 992), (1, 1, 1), (1000, 8, 3)])
def test_batches_grow_and_ranks_change_but_no_sample_is_lost_or_repeated(text, ranks):
    """256 -> 512 -> 1000 sequences up the ladder: the ranks' shares, put together, are one and the same stream."""
    whole = data.Stream(text, 16, seed=1).window_numbers(0, 3 * (256 + 512 + 1000))
    taken, cursor = [], 0
    for batch, world in zip((256, 512, 1000), ranks, strict=True):
        for _ in range(3):
            shares = [data.share(batch, rank, world) for rank in range(world)]
            assert {end - first for first, end in shares} <= {batch // world, -(-batch // world)}
            for first, end in shares:
                # A fresh stream each time: a rank knows nothing of what others read before.
                taken.append(data.Stream(text, 16, seed=1).window_numbers(cursor + first, end - first))
            cursor += batch
    assert torch.equal(torch.cat(taken), whole)


def test_the_held_out_set_is_fixed_and_spread_over_its_text(library):
    samples = data.held_out_samples(library, 256, 32)
    assert samples.shape == (256, 33)
    assert torch.equal(samples, data.held_out_samples(library, 256, 32))
    last = (len(library.held_out) - 1) // 32 * 255 // 256 * 32
    assert samples[-1].tolist() == library.held_out[last : last + 33].tolist()


def test_what_cannot_be_is_said(text, tmp_path):
    with pytest.raises(ConfigError, match="data: 'nowhere' is neither 'stdlib' nor a folder"):
        data.load("nowhere")
    (tmp_path / "only.py").write_text("x = 1")
    with pytest.raises(ConfigError, match="has 1 files, none of them in the held-out part"):
        data.load(str(tmp_path))
    with pytest.raises(ConfigError, match="5003 bytes hold no sequence of 6000 tokens"):
        data.Stream(text, 6000, 0)
    corpus = data.Corpus(text, text[:100], "", 2)
    with pytest.raises(ConfigError, match=r"held_out\.sequences: 7 is more than the 6 that the held-out text has"):
        data.held_out_samples(corpus, 7, 16)
