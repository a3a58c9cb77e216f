"""``scaleup tokenize``: every document once, in one part, by its text alone; whole or absent; errors have a place."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tasks import cli, tokenize
from tasks.errors import ScaleupError
from training import token_index

TEXTS = [f"document {number} {'é' * (number % 3)}\n" for number in range(300)]


def lines(path: Path, texts: list[str], field: str = "text") -> Path:
    content = "".join(json.dumps({"id": n, field: text}) + "\n" for n, text in enumerate(texts)).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def parquet(path: Path, texts: list[str]) -> Path:
    import pyarrow
    from pyarrow import parquet as files

    files.write_table(pyarrow.table({"text": texts}), path)
    return path


def read(folder: Path, part: str) -> list[np.ndarray]:
    """The documents of one part, as they lie in its files."""
    dtype = token_index.read(folder).dtype
    tokens = np.fromfile(folder / f"{part}.bin", dtype)
    return np.split(tokens, np.fromfile(folder / f"{part}.ends", "<i8"))[:-1]


def texts(folder: Path, part: str) -> list[str]:
    return [document.astype(np.uint8).tobytes().decode() for document in read(folder, part)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    words = {word: n for n, word in enumerate(["document", "?", *map(str, range(300)), "é", "éé", "<end>"])}
    made = Tokenizer(models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = tmp_path_factory.mktemp("tokenizer") / "words.json"
    made.save(str(path))
    return path


def test_every_document_is_in_one_part_and_copies_of_it_in_the_same(tmp_path):
    out = tmp_path / "out"
    index = tokenize.tokenize(
        [str(lines(tmp_path / "a.jsonl", TEXTS)), str(lines(tmp_path / "b.jsonl", TEXTS[:50]))],
        out, tokenizer="bytes", held_out_percent=10,
    )  # fmt: skip
    train, held_out = texts(out, "train"), texts(out, "held_out")
    assert sorted(train + held_out) == sorted(TEXTS + TEXTS[:50])
    assert not set(train) & set(held_out)
    assert 10 < len(set(held_out)) < 60
    assert [text for text in TEXTS if text in set(train)] == train[: len(set(train))], "in the order of the input"
    assert index.parts["train"].tokens == sum(len(text.encode()) for text in train)
    assert token_index.differences(out, index, whole=True) == []


def test_a_larger_corpus_moves_no_document_to_the_other_part(tmp_path):
    for name, many in (("some", 150), ("all", 300)):
        tokenize.tokenize([str(lines(tmp_path / f"{name}.jsonl", TEXTS[:many]))], tmp_path / name, tokenizer="bytes",
                          held_out_percent=10)  # fmt: skip
    assert set(texts(tmp_path / "some", "held_out")) <= set(texts(tmp_path / "all", "held_out"))
    assert set(texts(tmp_path / "some", "train")) <= set(texts(tmp_path / "all", "train"))


def test_the_kinds_of_input_give_the_same_tokens(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number:04d}.md").write_text(text)
    (folder / ".hidden").write_text("not read")
    inputs = {
        "jsonl": lines(tmp_path / "x.jsonl", TEXTS),
        "gzip": lines(tmp_path / "x.jsonl.gz", TEXTS),
        "parquet": parquet(tmp_path / "x.parquet", TEXTS),
        "folder": folder,
    }
    marks = {
        kind: tokenize.tokenize([str(path)], tmp_path / kind, tokenizer="bytes", held_out_percent=10).fingerprint
        for kind, path in inputs.items()
    }
    assert len(set(marks.values())) == 1, marks


def test_a_tokenizers_file_decides_tokens_vocabulary_and_the_end(tmp_path, tokenizer):
    source = lines(tmp_path / "x.jsonl", TEXTS, field="body")
    index = tokenize.tokenize([str(source)], tmp_path / "out", tokenizer=str(tokenizer), document_end="<end>",
                              field="body", held_out_percent=10)  # fmt: skip
    end = index.vocabulary - 1
    assert (index.vocabulary, index.document_end, index.dtype) == (305, end, "uint16")
    assert index.tokenizer["name"] == "words.json" and len(index.tokenizer["sha256"]) == 64
    assert all(document[0] == 0 and document[-1] == end for document in read(tmp_path / "out", "train"))
    found = {int(document[1]) - 2 for part in ("train", "held_out") for document in read(tmp_path / "out", part)}
    assert found == set(range(300))


def test_batches_change_nothing(tmp_path, monkeypatch, tokenizer):
    source, told = lines(tmp_path / "x.jsonl", TEXTS), []
    one = tokenize.tokenize([str(source)], tmp_path / "one", tokenizer=str(tokenizer), held_out_percent=10)
    monkeypatch.setattr(tokenize, "BATCH_CHARACTERS", 100)
    many = tokenize.tokenize([str(source)], tmp_path / "many", tokenizer=str(tokenizer), held_out_percent=10,
                             tell=told.append)  # fmt: skip
    assert one.fingerprint == many.fingerprint
    assert len(told) > 20 and told[-1].documents == 300
    assert [p.tokens for p in told] == sorted(p.tokens for p in told)


WRONG = {
    "not JSON": ('{"text": "a"}\n{"text": \n', {}, r"x\.jsonl, line 2 is not JSON"),
    "no text": (
        '{"body": "a", "id": 1}\n',
        {},
        r"x\.jsonl, line 1 has no text in 'text'; it has body, id; name",
    ),
    "end unknown": ('{"text": "a"}\n', {"document_end": "</s>"}, r"--document-end '</s>' is no token of .*words\.json"),
    "too few": ('{"text": "a"}\n', {}, r"none of the 1 documents is in the part held_out; give more"),
    "percent": ('{"text": "a"}\n', {"held_out_percent": 100}, r"--held-out-percent 100 must lie between 0 and 100"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_is_placed_and_nothing_is_left_behind(tmp_path, tokenizer, case):
    content, settings, said = WRONG[case]
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(ScaleupError, match=said):
        tokenize.tokenize([str(tmp_path / "x.jsonl")], tmp_path / "out", tokenizer=str(tokenizer), **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_other_inputs_that_are_wrong(tmp_path):
    def refused(path: Path, said: str, **settings) -> None:
        with pytest.raises(ScaleupError, match=said):
            tokenize.tokenize([str(path)], tmp_path / "out", **{"tokenizer": "bytes", **settings})
        assert not list(tmp_path.glob(".out*"))

    refused(tmp_path / "x", r"x is neither a file nor a folder")
    (tmp_path / "x.txt").write_bytes(b"ab\xff")
    refused(tmp_path / "x.txt", r"x\.txt is not UTF-8 text \(byte 2\)")
    whole = lines(tmp_path / "x.jsonl.gz", TEXTS).read_bytes()
    (tmp_path / "x.jsonl.gz").write_bytes(whole[:-40])
    refused(tmp_path / "x.jsonl.gz", r"x\.jsonl\.gz was cut short or is no gzip file")
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    refused(tmp_path / "x.parquet", r"x\.parquet is no sound parquet file")
    parquet(tmp_path / "y.parquet", ["a", None])
    refused(tmp_path / "y.parquet", r"y\.parquet, row 2: 'text' holds NoneType, not text")
    refused(tmp_path / "y.parquet", r"y\.parquet has no column 'body'; it has text", field="body")
    refused(tmp_path / "x.txt", r"--tokenizer nowhere: there is no such file", tokenizer="nowhere")
    refused(tmp_path / "x.txt", r"--tokenizer .*x\.txt is no file of the library", tokenizer=str(tmp_path / "x.txt"))
    refused(tmp_path / "x.txt", r"--document-end: bytes have no token to spare", document_end="<end>")


def test_an_interruption_leaves_nothing(tmp_path):
    def interrupted(progress: tokenize.Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenize.tokenize([str(lines(tmp_path / "x.jsonl", TEXTS))], tmp_path / "out", tokenizer="bytes",
                          tell=interrupted)  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_the_command_makes_checks_and_refuses(tmp_path, capsys):
    source, out = lines(tmp_path / "x.jsonl", TEXTS), tmp_path / "out"
    said = ["tokenize", str(source), "--tokenizer", "bytes", "--out", str(out), "--held-out-percent", "10"]
    assert cli.main(said) == 0
    first = capsys.readouterr().out
    assert "vocabulary 256, fingerprint" in first and "uint16" in first
    assert cli.main(["tokenize", "--check", str(out)]) == 0
    assert capsys.readouterr().out == first
    assert cli.main(said) == 1
    assert "out exists; give another --out, or remove it" in capsys.readouterr().err
    with (out / "train.bin").open("r+b") as file:
        file.write(b"\xff")
    assert cli.main(["tokenize", "--check", str(out)]) == 1
    assert "train.bin has changed since its index was written" in capsys.readouterr().err
    assert cli.main(["tokenize", str(source)]) == 1
    assert "name the inputs, --tokenizer FILE (or bytes) and --out FOLDER" in capsys.readouterr().err
