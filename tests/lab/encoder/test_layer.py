"""The layer against torch's own, and against its definition written out."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

import identilens as idl
from helpers.heads import seeded
from identilens.lab.encoder.configuration import IdentifiableEncoderConfig
from identilens.lab.encoder.modeling import (
    IdentifiableEncoderForSequenceClassification,
    IdentifiableEncoderLayer,
    IdentifiableEncoderModel,
)
from identilens.measures.attention import numerical_rank


def copy_torch(layer, reference):
    """Give a Con layer the weights of torch's encoder layer."""
    size = reference.self_attn.embed_dim
    own = layer.attention
    with torch.no_grad():
        for index, linear in enumerate((own.q_proj, own.k_proj, own.v_proj)):
            rows = slice(index * size, (index + 1) * size)
            linear.weight.copy_(reference.self_attn.in_proj_weight[rows])
            linear.bias.copy_(reference.self_attn.in_proj_bias[rows])
    for mine, theirs in (
        (own.out_proj, reference.self_attn.out_proj),
        (layer.linear1, reference.linear1),
        (layer.linear2, reference.linear2),
        (layer.attention_norm, reference.norm1),
        (layer.output_norm, reference.norm2),
    ):
        mine.load_state_dict(theirs.state_dict())


@pytest.fixture
def pair():
    torch.manual_seed(0)
    reference = nn.TransformerEncoderLayer(24, 4, 40, dropout=0.0, batch_first=True).double()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    config = IdentifiableEncoderConfig(
        d_k=6, hidden_size=24, num_attention_heads=4, intermediate_size=40, dropout=0.0
    )
    config._attn_implementation = "sdpa"
    mine = IdentifiableEncoderLayer(config).double()
    copy_torch(mine, reference)
    return mine, reference


@pytest.mark.parametrize("training", [True, False])
def test_con_equals_torch_values_and_gradients(pair, training):
    mine, reference = (module.train(training) for module in pair)
    inputs = torch.randn(3, 7, 24, dtype=torch.float64)
    ours, theirs = inputs.clone().requires_grad_(), inputs.clone().requires_grad_()
    causal = torch.full((7, 7), -torch.inf, dtype=torch.float64).triu(1)
    found, expected = mine(ours, causal), reference(theirs, src_mask=causal)
    assert_close(found, expected, rtol=1e-10, atol=1e-10)
    found.square().sum().backward()
    expected.square().sum().backward()
    assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-9)
    assert_close(
        mine.attention.v_proj.weight.grad,
        reference.self_attn.in_proj_weight.grad[48:],
        rtol=1e-9,
        atol=1e-9,
    )


@pytest.mark.parametrize("heads", ["concat", "add"])
@pytest.mark.parametrize(("d_k", "d_v"), [(1, None), (40, 6)])
def test_attention_as_the_paper_defines_it(heads, d_k, d_v):
    torch.manual_seed(0)
    config = IdentifiableEncoderConfig(
        heads=heads,
        d_k=d_k,
        d_v=d_v,
        hidden_size=24,
        num_attention_heads=4,
    )
    config._attn_implementation = "eager"
    attention = IdentifiableEncoderLayer(config).double().eval().attention
    states = torch.randn(1, 9, 24, dtype=torch.float64)
    found, _ = attention(states)
    outputs = []
    for head in range(4):
        own, mixed = (
            slice(head * d_k, (head + 1) * d_k),
            slice(head * config.d_v, (head + 1) * config.d_v),
        )
        queries = states[0] @ attention.q_proj.weight[own].T + attention.q_proj.bias[own]
        keys = states[0] @ attention.k_proj.weight[own].T + attention.k_proj.bias[own]
        values = states[0] @ attention.v_proj.weight[mixed].T + attention.v_proj.bias[mixed]
        outputs.append(torch.softmax(queries @ keys.T / d_k**0.5, -1) @ values)
    joined = sum(outputs) if heads == "add" else torch.cat(outputs, -1)
    expected = joined @ attention.out_proj.weight.T + attention.out_proj.bias
    assert_close(found[0], expected, rtol=1e-12, atol=1e-12)


def test_add_lifts_the_rank_of_every_head_to_d_model():
    torch.manual_seed(0)
    states = torch.randn(40, 24, dtype=torch.float64)
    ranks = {}
    for heads in ("concat", "add"):
        attention = IdentifiableEncoderLayer(
            IdentifiableEncoderConfig(heads=heads, hidden_size=24, num_attention_heads=4)
        ).attention.double()
        values = attention.v_proj(states).unflatten(-1, (4, -1)).transpose(0, 1)
        blocks = attention.out_proj.weight.T
        blocks = blocks.expand(4, -1, -1) if heads == "add" else blocks.unflatten(0, (4, -1))
        ranks[heads] = numerical_rank(values, blocks).rank.tolist()
    assert ranks == {"concat": [6] * 4, "add": [24] * 4}


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
