"""A model's weights leave as safetensors, read here by the format's description; one with code does not."""

import json
import os
import pickle
import warnings

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save

from training import export, manifest

STATE = {
    "model.b": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "model.a": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "optimizer.b.first": torch.ones(2, 3),
    "step": torch.tensor(7),
}


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "step_00000007"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells that there is no process group
        save(STATE, checkpoint_id=folder, no_dist=True)
    shape = {"model": {"layers": 1}}
    manifest.write(folder, step=7, tokens=70, purpose="final", world=1, config_digest="", extra=shape)
    return folder


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_file_holds_the_weights_bit_for_bit_and_nothing_else(checkpoint, tmp_path):
    export.main([str(checkpoint), "--out", str(tmp_path / "out")])
    data = (tmp_path / "out" / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    assert length % 8 == 0 and header.pop("__metadata__")["step"] == "7"
    types = {"F32": torch.float32, "BF16": torch.bfloat16}
    assert set(header) == {"a", "b"}
    for name, said in header.items():
        begin, end = said["data_offsets"]
        read = torch.frombuffer(bytearray(body[begin:end]), dtype=types[said["dtype"]]).reshape(said["shape"])
        assert torch.equal(read, STATE[f"model.{name}"])
    assert len(body) == 4 + 24
    assert json.loads((tmp_path / "out" / "model.json").read_text()) == {"layers": 1}


def test_a_checkpoint_with_code_in_its_index_is_refused_before_it_is_unpickled(checkpoint, tmp_path, capsys):
    class Malicious:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    (checkpoint / ".metadata").write_bytes(pickle.dumps(Malicious()))
    assert export.main([str(checkpoint), "--out", str(tmp_path / "out")]) == 2
    assert ".metadata has" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists() and not (tmp_path / "out").exists()


def test_nothing_is_written_over(checkpoint, tmp_path, capsys):
    assert export.main([str(checkpoint), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{tmp_path} exists; name a folder that does not\n"
