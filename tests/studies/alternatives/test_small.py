"""Alternatives of heads that share keys, and of heads that have none, on models small enough for every run."""

import pytest
import torch
import transformers as hf
from torch.testing import assert_close

import identilens as idl
from helpers import zoo
from helpers.heads import seeded
from identilens.errors import SettingError
from identilens.measures.attention.determined import certain_mass
from identilens.models.explaining import Exact
from identilens.models.substitution import ModelRun
from identilens.studies.alternatives.search import realisable
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
        head = lens.layer(item, 0).head(1)
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


def search(captured):
    """The realisable alternative of a layer's second head and those that share its keys."""
    size = captured.head(1).group
    first = 1 - 1 % size
    heads = [captured.head(first + at) for at in range(size)]
    return realisable(heads, 1 - first, 0.01, seeded())


def test_heads_that_share_keys_take_new_ones_together(grouped):
    lens, item, head = grouped
    with Exact():
        layer = lens.layer(item, 0)
    found = search(layer)
    with Exact():
        plain = lens.substitute({}, item)
        run = lens.substitute({head.address: found.weights}, item)
    assert 0.01 <= float((found.weights - head.attention).abs().sum(-1).mean()) / 2 < 0.011
    assert put_back(plain, run)["hidden_change"] < 1e-12
    assert found.dimension == found.formula > 0
    assert found.note == (
        "its keys serve 2 query heads: all of them take new ones, and each keeps its output"
    )
    logits = head.scaling * found.queries @ found.keys.mT
    hidden = ~torch.ones(6, 6, dtype=torch.bool).tril()
    assert_close(
        logits.masked_fill(hidden, -torch.inf).softmax(-1), found.weights, atol=1e-10, rtol=0
    )


def test_where_no_direction_is_free_it_says_so(grouped):
    lens, _, _ = grouped
    found = search(lens.layer(lens.read([[7]])[0], 0))
    assert found.weights is None
    assert found.dimension == 0
    assert found.note.startswith("no realisable alternative lies near")


@pytest.mark.parametrize("family", ["gpt_oss", "gemma2", "bloom"])
def test_logits_that_are_more_than_a_product_have_no_realisable_alternative(family):
    bloom = hf.BloomConfig(vocab_size=96, hidden_size=32, n_layer=1, n_head=4)
    model = hf.BloomModel(bloom).eval() if family == "bloom" else zoo.build(family)
    lens = idl.Lens(model)
    found = search(lens.layer(lens.read([zoo.ids(6)])[0], 0))
    assert found.weights is found.dimension is None
    assert found.note == "the weights are not softmax(s Q Kᵀ + bias)"


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


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("llama", None),
        ("qwen3", None),
        ("gpt_neox", None),
        ("t5", "encoder"),
        ("t5", "decoder"),
        ("t5", "cross"),
    ],
)
def test_other_queries_and_keys_change_the_attention_and_not_the_model(family, kind):
    torch.manual_seed(0)
    lens, ids = idl.Lens(zoo.build(family).double()), torch.arange(5, 21)[None]
    batch = {"input_ids": ids, **({"decoder_input_ids": ids} if family == "t5" else {})}
    [item] = lens.read(batch)
    with Exact():
        layer = lens.layer(item, 1, kind)
    found, head = search(layer), layer.head(1)
    assert found.weights is not None, found.note
    with Exact():
        plain = lens.substitute({}, item)
        run = lens.substitute({head.address: found.weights}, item)
    assert found.dimension == found.formula > 0
    assert 0.0099 < float((found.weights - head.attention).abs().sum(-1).mean()) / 2 < 0.0103
    assert head.output_error(found.weights) < 1e-12
    assert put_back(plain, run)["hidden_change"] < 1e-12
