"""The Hugging Face models: padding, batches, gradients, saving, attention implementations, errors."""

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

import identilens as idl
from helpers.heads import seeded
from identilens.lab.encoder.configuration import IdentifiableEncoderConfig
from identilens.lab.encoder.modeling import (
    IdentifiableEncoderForSequenceClassification,
    IdentifiableEncoderModel,
)

SIZES = {
    "vocab_size": 50, "d_k": 3, "hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 32,
    "max_position_embeddings": 20, "num_labels": 3,
}  # fmt: skip


def classifier(heads="add", **more):
    torch.manual_seed(0)
    config = IdentifiableEncoderConfig(**{**SIZES, "heads": heads, **more})
    return IdentifiableEncoderForSequenceClassification(config).double().eval()


def tokens(rows, length, seed=0):
    return torch.randint(3, 50, (rows, length), generator=seeded(seed))


@pytest.mark.parametrize("heads", ["concat", "add"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_prediction(heads, layers, side):
    model = classifier(heads, num_hidden_layers=layers)
    ids = tokens(3, 9)
    mask = torch.ones_like(ids)
    lengths = [9, 5, 1]
    for row, length in enumerate(lengths):
        mask[row, : 9 - length] = 0 if side == "left" else 1
        if side == "right":
            mask[row, length:] = 0
    found = model(ids * mask, mask).logits
    for row, length in enumerate(lengths):
        alone = ids[row : row + 1, 9 - length :] if side == "left" else ids[row : row + 1, :length]
        assert_close(found[row], model(alone).logits[0], rtol=1e-10, atol=1e-10)


def test_the_first_token_alone_gives_the_same_as_all_of_them():
    model = classifier(num_hidden_layers=2)
    ids = tokens(2, 8)
    short = model(ids)
    whole = model(ids, output_hidden_states=True)
    assert_close(short.logits, whole.logits, rtol=1e-12, atol=1e-12)
    assert short.hidden_states is None
    assert [tuple(state.shape) for state in whole.hidden_states] == [(2, 8, 24)] * 3


@pytest.mark.parametrize("heads", ["concat", "add"])
def test_saved_and_loaded_by_every_way_it_is_the_same(heads, tmp_path):
    model = classifier(heads, d_v=7).float()
    model.save_pretrained(tmp_path)
    ids = tokens(2, 6)
    config = AutoConfig.from_pretrained(tmp_path)
    assert (config.model_type, config.heads, config.d_k, config.d_v) == (
        "identifiable_encoder", heads, 3, 7,
    )  # fmt: skip
    for again in (
        IdentifiableEncoderForSequenceClassification.from_pretrained(tmp_path),
        AutoModelForSequenceClassification.from_pretrained(tmp_path),
        idl.load(tmp_path).model,
    ):
        assert type(again) is IdentifiableEncoderForSequenceClassification
        assert torch.equal(again.eval()(ids).logits, model(ids).logits)
    body = AutoModel.from_pretrained(tmp_path).eval()
    assert type(body) is IdentifiableEncoderModel
    assert torch.equal(body(ids).last_hidden_state, model.encoder(ids).last_hidden_state)


def test_weights_start_as_the_paper_says():
    model = IdentifiableEncoderModel(IdentifiableEncoderConfig(vocab_size=2000, heads="add"))
    assert model.token_embeddings.weight.std().item() == pytest.approx(1, rel=0.01)
    assert model.position_embeddings.weight.std().item() == pytest.approx(1, rel=0.01)
    attention = model.layers[0].attention
    bound = (6 / (512 + 8 * 512)) ** 0.5
    assert attention.v_proj.weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
    assert not attention.q_proj.bias.any()
