"""Alternatives of heads with shared, turned, latent, normed or capped keys: made by parameters, put into the model."""

import pytest
import torch
import transformers
from torch.testing import assert_close

import identilens as idl
from helpers import zoo
from helpers.heads import seeded
from identilens.measures.attention import realisable_dimension
from identilens.models.explaining import Exact
from identilens.models.reading import read_head
from identilens.models.tying import group_parameters
from identilens.studies.alternatives.groups import made
from identilens.studies.alternatives.study import compare_runs

LAYER = 1
OWN = {
    "bloom": lambda: transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=96, hidden_size=32, n_layer=2, n_head=4)
    ),
    "mpt": lambda: transformers.MptForCausalLM(
        transformers.MptConfig(vocab_size=96, d_model=32, n_layers=2, n_heads=4, max_seq_len=64)
    ),
    "roformer": lambda: transformers.RoFormerModel(
        transformers.RoFormerConfig(**zoo._BERT, embedding_size=16)
    ),
}
"""Families that compute attention by themselves."""


def read(family, length=16, head=1, kind=None, **config):
    """A tiny model in float64 with a text, and one of its heads."""
    torch.manual_seed(0)
    own = zoo._random(OWN[family]()) if family in OWN else None
    model = (own or zoo.build(family)).double()
    for name, value in config.items():
        setattr(model.config, name, value)
    lens, ids = idl.Lens(model), torch.arange(5, 5 + length)[None]
    item = lens.read({"input_ids": ids, **({"decoder_input_ids": ids} if family == "t5" else {})})[
        0
    ]
    return lens, item, read_head(lens, item, LAYER, head, kind)


def search(lens, item, head, distance=0.01):
    return made(lens, item, head, distance, seeded())


@pytest.mark.parametrize(
    ("family", "kind", "config", "known"),
    [
        ("llama", None, {}, True),
        ("mistral", None, {"sliding_window": 14}, False),
        ("gemma2", None, {}, False),
        ("gemma3", None, {}, False),
        ("qwen3", None, {}, False),
        ("deepseek_v3", None, {"_experts_implementation": "eager"}, False),
        ("gpt_neox", None, {}, True),
        ("t5", "encoder", {}, True),
        ("t5", "decoder", {}, True),
        ("t5", "cross", {}, True),
        ("bloom", None, {}, True),
        ("mpt", None, {}, True),
        ("roformer", None, {}, True),
    ],
)
def test_other_parameters_change_the_attention_and_not_the_model(family, kind, config, known):
    with Exact():
        lens, item, head = read(family, kind=kind, **config)
        digest = lens.digest
        found, parameters, run = search(lens, item, head)
        assert found.weights is not None, found.note
        assert parameters.weights is not None, parameters.note
        plain = lens.substitute({}, item)
        assert lens.digest == digest
    assert found.dimension > 0
    assert (found.formula == found.dimension) or not known
    assert_close(parameters.weights, found.weights, atol=1e-10, rtol=0)
    assert 0.0099 < float((found.weights - head.attention).abs().sum(-1).mean()) / 2 < 0.0103
    assert head.output_error(found.weights) < 1e-12
    changes = compare_runs(plain, run)
    assert changes.hidden < 1e-12
    assert max(row["relative_change"] for row in changes.rows if row["state"] != "loss") < 1e-12
    assert min(parameters.moved.values()) > 1e-4
    if head.group > 1:
        assert (
            f"its keys serve {head.group} query heads: all of them take new ones, and each keeps"
            in found.note
        )


@pytest.mark.parametrize("repeated", [False, True])
def test_the_formula_is_for_texts_without_repeated_tokens(repeated):
    """In layer 0 of Llama equal tokens have equal hidden states; a bias makes up for the parameters that they lose."""
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=24, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
        intermediate_size=16, attention_bias=True,
    )  # fmt: skip
    torch.manual_seed(0)
    ids = torch.arange(5, 21)[None]
    if repeated:
        ids[0, 9] = ids[0, 2]
    with Exact():
        lens = idl.Lens(transformers.LlamaModel(config).double().eval())
        [item] = lens.read({"input_ids": ids})
        group = group_parameters(lens, item, read_head(lens, item, 0, 1))
        heads = group.softmax_map()
    found = realisable_dimension(heads)
    assert found.formula == (None if repeated else found.dimension)
    assert found.regular


@pytest.mark.parametrize("family", ["qwen3"])
def test_norms_in_float32_do_not_round_the_search(family):
    lens = idl.Lens(zoo.build(family))
    item = lens.read([list(range(5, 21))])[0]
    head = read_head(lens, item, LAYER, 1)
    found, parameters, run = search(lens, item, head, 0.002)
    assert found.dimension > 0
    assert "stopped" not in found.note
    assert head.output_error(parameters.weights) < 1e-5
    assert compare_runs(lens.substitute({}, item), run).hidden < 1e-4
