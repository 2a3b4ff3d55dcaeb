"""Alternatives of heads that share keys, and of heads that have none, on models small enough for every run."""

import pytest
import torch
import transformers
import transformers as hf
from torch.testing import assert_close

import identilens as idl
from helpers import zoo
from helpers.heads import seeded
from identilens.errors import SettingError
from identilens.measures.attention import realisable_dimension
from identilens.measures.attention.determined import certain_mass
from identilens.models.explaining import Exact
from identilens.models.reading import read_head
from identilens.models.substitution import ModelRun
from identilens.models.tying import group_parameters
from identilens.studies.alternatives.groups import made
from identilens.studies.alternatives.study import put_back


@pytest.fixture(scope="module")
def grouped():
    """A layer of two query heads with one key, turned by position; its text and its second head."""
    config = hf.LlamaConfig(
        vocab_size=96, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=8,
    )  # fmt: skip
    torch.manual_seed(0)
    lens = idl.Lens(hf.LlamaModel(config).double().eval())
    with Exact():
        [item] = lens.read([zoo.ids(6)])
        head = read_head(lens, item, 0, 1)
    return lens, item, head


def test_runs_are_compared_by_the_final_state_logits_and_loss():
    """Changes of a position's vector as a share of its norm."""
    before = torch.tensor([[[3.0, 4.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 2.0]]])
    after = before.clone()
    after[1, 1] = torch.tensor([0.5, 2.0])
    plain = ModelRun({"encoder": before}, torch.tensor([[2.0, 0.0]]), 0.5)
    changed = ModelRun({"encoder": after}, torch.tensor([[2.0, 1.0]]), 0.25)
    assert [*put_back(plain, changed).values()] == [0.25, 0.5, 0.25]
    without = ModelRun(changed.hidden_states, None, None)
    for runs in ((plain, without), (without, plain)):
        assert [*put_back(*runs).values()][1:] == [None, None]
    assert [*put_back(plain, None).values()] == [None] * 3


def test_the_model_computes_what_the_parameters_of_all_heads_of_a_group_make(grouped):
    lens, item, head = grouped
    with Exact():
        found, parameters, run = made(lens, item, head, 0.01, seeded())
        plain = lens.substitute({}, item)
    assert_close(parameters.weights, found.weights, atol=1e-10, rtol=0)
    assert 0.01 <= float((found.weights - head.attention).abs().sum(-1).mean()) / 2 < 0.011
    assert put_back(plain, run)["hidden_change"] < 1e-12
    assert (found.name, parameters.name) == ("realisable", "parameters")
    assert found.dimension == found.formula == parameters.dimension == parameters.formula > 0
    assert parameters.queries is parameters.keys is None
    assert found.note == (
        "its keys serve 2 query heads: all of them take new ones, and each keeps its output"
    )
    assert parameters.moved.keys() == {"q_proj.weight", "k_proj.weight"}
    assert min(parameters.moved.values()) > 0.01
    logits = head.scaling * found.queries @ found.keys.mT
    hidden = ~torch.ones(6, 6, dtype=torch.bool).tril()
    assert_close(
        logits.masked_fill(hidden, -torch.inf).softmax(-1), found.weights, atol=1e-10, rtol=0
    )


def test_where_no_direction_is_free_both_say_so(grouped):
    lens, _, _ = grouped
    with Exact():
        [item] = lens.read([[7]])
        found, parameters, run = made(lens, item, read_head(lens, item, 0, 1), 0.01, seeded())
    assert found.weights is parameters.weights is run is None
    assert found.dimension == parameters.dimension == 0
    assert found.note == parameters.note
    assert found.note.startswith("no realisable alternative lies near")


def test_logits_that_are_changed_have_no_realisable_alternative():
    lens = idl.Lens(zoo.build("gpt_oss"))
    [item] = lens.read([zoo.ids(6)])
    found, parameters, run = made(lens, item, read_head(lens, item, 0, 1), 0.01, seeded())
    assert found.weights is parameters.weights is run is found.dimension is None
    note = (
        "the weights are not softmax(s Q Kᵀ + bias): an attention sink or logits that are changed"
    )
    assert found.note == parameters.note == note


def test_without_parameters_of_its_own_a_head_moves_its_queries_and_keys():
    lens = idl.Lens(zoo.build("albert"))
    [item] = lens.read([zoo.ids(12)])
    head = read_head(lens, item, 1, 1)
    found, parameters, run = made(lens, item, head, 0.01, seeded())
    assert parameters.weights is run is None
    assert "several layers share its parameters" in parameters.note
    assert found.dimension == found.formula > 0
    logits = head.scaling * found.queries @ found.keys.mT
    assert_close(logits.softmax(-1), found.weights, atol=1e-12, rtol=0)
    assert head.output_error(found.weights) < 1e-12


def test_rows_that_are_asked_for_change_alone(grouped):
    lens, _, head = grouped
    found = idl.alternatives(lens, [zoo.ids(6)], heads=1, queries=(5, 4))
    assert found.table["n_query"].unique().to_list() == [2]
    assert not found.matrices
    assert found.summary().numbers["queries"] == "5, 4"
    far = found.table.filter(alternative="far").row(0, named=True)
    whole = idl.alternatives(lens, [zoo.ids(6)], heads=1)
    assert far["largest_total_variation"] <= whole.table["largest_total_variation"].max() + 1e-6
    assert far["distance_bound"] == pytest.approx(
        float(1 - certain_mass(head.attention[4:], head.projected, visible=head.visible[4:]).mean())
    )
    with pytest.raises(SettingError, match="realisable"):
        idl.alternatives(lens, [zoo.ids(6)], queries=(5,), realisable=True)


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
    assert put_back(plain, run)["hidden_change"] < 1e-12
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
    assert put_back(lens.substitute({}, item), run)["hidden_change"] < 1e-4
