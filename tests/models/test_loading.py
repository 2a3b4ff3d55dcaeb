"""Checkpoints that are not whole are refused, naming what they lack; what is not needed may be missing."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertTokenizer,
    ByT5Tokenizer,
    LlamaForCausalLM,
)

import identilens as idl
from helpers.zoo import build
from identilens.errors import InputError, ModelError, ModelNotFoundError
from identilens.models.bundled import resolved


def saved(folder, family, without=()):
    """A checkpoint that lacks the weights whose names have any of these parts."""
    model = build(family) if isinstance(family, str) else family
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    weights = {
        name: tensor
        for name, tensor in load_file(file).items()
        if not any(part in name for part in without)
    }
    save_file(weights, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("family", "part"),
    [
        ("bert", "layer.1.attention.self.query"),
        ("t5", "decoder.block.1.layer.1"),
    ],
)
def test_missing_weights_are_refused_by_name(tmp_path, family, part):
    with pytest.raises(
        InputError, match=rf"lacks weights that .* computes with: .*{part}.*random numbers.*again"
    ):
        idl.load(saved(tmp_path, family, [part]), device="cpu")


def changed(folder, **fields):
    """The checkpoint with other fields in its config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    return folder


@pytest.mark.parametrize(
    ("family", "fields", "named"),
    [
        ("bert", {"num_hidden_layers": 1}, r"encoder\.layer\.1\.attention.*"),
        ("t5", {"num_decoder_layers": 1}, r"decoder\.block\.1\.layer\.0"),
        ("biased", {"attention_bias": False}, r"model\.layers\.0\.self_attn\.k_proj\.bias"),
    ],
)
def test_weights_beyond_the_configuration_are_refused_by_name(tmp_path, family, fields, named):
    config = build("llama").config
    config.attention_bias = True
    model = LlamaForCausalLM(config) if family == "biased" else family
    folder = changed(saved(tmp_path, model), **fields)
    with pytest.raises(
        InputError,
        match=rf"contains weights that .* does not compute with: .*{named}.*config\.json again",
    ):
        idl.load(folder, device="cpu")


def test_heads_poolers_and_old_buffers_may_be_left_over(tmp_path):
    folder = changed(
        saved(tmp_path / "bert", BertForPreTraining(build("bert").config)),
        architectures=["BertForMaskedLM"],
    )
    assert type(idl.load(folder, device="cpu").model) is BertForMaskedLM
    assert (
        type(idl.load(changed(folder, architectures=["BertModel"]), device="cpu").model).__name__
        == "BertModel"
    )
    folder = saved(tmp_path / "llama", "llama")
    weights = load_file(folder / "model.safetensors")
    old = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "model.layers.0.masked_bias": torch.ones(1),
    }
    save_file({**weights, **old}, folder / "model.safetensors", metadata={"format": "pt"})
    assert idl.load(folder, device="cpu").model.config.num_hidden_layers == 2


def test_weights_in_pickles_are_not_read(tmp_path):
    model = build("bert")
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be loaded .*safetensors"):
        idl.load(tmp_path, device="cpu")


def test_an_index_that_names_pickles_is_not_followed(tmp_path):
    names = load_file(saved(tmp_path, "bert") / "model.safetensors")
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.bin")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "weights.bin")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"index.json names files that are no safetens"):
        idl.load(tmp_path, device="cpu")


def test_a_head_or_pooler_without_weights_is_left_away(tmp_path):
    lens = idl.load(saved(tmp_path / "llama", "llama", ["lm_head"]), device="cpu")
    assert type(lens.model).__name__ == "LlamaModel"
    assert torch.equal(lens.model.embed_tokens.weight, build("llama").model.embed_tokens.weight)
    headed = saved(
        tmp_path / "bert",
        BertForSequenceClassification(build("bert").config),
        ["classifier", "pooler"],
    )
    assert type(idl.load(headed, device="cpu").model).__name__ == "BertModel"


@pytest.mark.parametrize("family", ["bert", "whisper"])
def test_text_for_a_model_without_tokenizer_files_is_refused(tmp_path, family):
    lens = idl.load(saved(tmp_path, family), device="cpu")
    assert lens.tokenizer is None
    with pytest.raises(
        InputError,
        match=r"the model has none\. Put its files into the model's folder",
    ):
        lens.read("some words")


def test_tokenizers_with_files_or_without_need_of_any_are_kept(tmp_path):
    assert idl.load(whole(tmp_path / "bert"), device="cpu").read("a b c")[0].tokens["encoder"][
        1:4
    ] == (
        "a",
        "b",
        "c",
    )
    ByT5Tokenizer().save_pretrained(saved(tmp_path / "t5", "t5"))
    assert idl.load(tmp_path / "t5", device="cpu").tokenizer is not None


def whole(folder):
    """A checkpoint with a tokenizer."""
    saved(folder, "bert")
    words = folder / "vocab.txt"
    words.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]))
    BertTokenizer(str(words)).save_pretrained(folder)
    return folder


def reshaped(content):
    return content.replace(b'"intermediate_size": ', b'"intermediate_size": 1')


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("config.json", lambda content: content[:50], r"no model found under"),
        ("config.json", reshaped, r"cannot be loaded \(RuntimeError: .*size"),
        (
            "config.json",
            lambda content: content.replace(b'"hidden_size": ', b'"hidden_size": -'),
            r"cannot be loaded",
        ),
        ("model.safetensors", lambda content: content[:-1], r"cannot be loaded \(Safetensor"),
        ("model.safetensors", lambda content: b"", r"cannot be loaded \(Safetensor"),
        ("model.safetensors", lambda content: b"\xff" * 1000, r"cannot be loaded \(Safetensor"),
    ],
)
def test_damage_of_any_file_is_named_with_its_cause(tmp_path, name, damage, said):
    file = whole(tmp_path / "model") / name
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises((ModelError, ModelNotFoundError), match=said) as caught:
        idl.load(file.parent, device="cpu")
    assert str(file.parent) in str(caught.value)


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


def test_names(unchecked_shapes, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bundeld").mkdir()
    assert resolved("bundeld") == "bundeld", "a folder with nearly a bundled name"
    assert resolved("bundled-decoder") == idl.bundled_model("decoder")
    assert resolved("some/model") == "some/model"


def test_missing_weights_of_the_encoder_are_named(tmp_path, monkeypatch):
    package = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: package)
    with pytest.raises(ModelNotFoundError, match="--force-reinstall"):
        idl.bundled_model("encoder")
