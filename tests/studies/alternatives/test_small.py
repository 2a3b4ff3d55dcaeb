"""Alternatives of heads that share keys, and of heads that have none, on models small enough for every run."""

import pytest
import torch
import transformers as hf
from torch.testing import assert_close

import identilens as idl
from helpers import zoo
from identilens.errors import InputError, SettingError
from identilens.measures.attention.determined import certain_mass
from identilens.models.explaining import Exact
from identilens.models.reading import read_head
from identilens.models.substitution import ModelRun
from identilens.studies.alternatives import groups
from identilens.studies.alternatives.groups import made
from identilens.studies.alternatives.search import or_note
from identilens.studies.alternatives.study import compare_runs


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


def seeded():
    return torch.Generator().manual_seed(0)


def test_runs_are_compared_state_by_state():
    """Changes of an entry, and of a position's vector as a share of its norm."""
    before = torch.tensor([[[3.0, 4.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 2.0]]])
    after = before.clone()
    after[1, 1] = torch.tensor([0.5, 2.0])
    plain = ModelRun({"encoder": before}, torch.tensor([[2.0, 0.0]]), 0.5)
    changed = ModelRun({"encoder": after}, torch.tensor([[2.0, 1.0]]), 0.25)
    found = compare_runs(plain, changed)
    assert (found.hidden, found.logits, found.loss) == (0.25, 0.5, 0.25)
    assert [tuple(row.values()) for row in found.rows] == [
        ("encoder", 0, 0.0, 0.0), ("encoder", 1, 0.5, 0.25), ("logits", None, 1.0, 0.5), ("loss", None, 0.25, 0.5),
    ]  # fmt: skip
    without = ModelRun(changed.hidden_states, None, None)
    for runs in ((plain, without), (without, plain)):
        found = compare_runs(*runs)
        assert (found.logits, found.loss, len(found.rows)) == (None, None, 2)


def test_the_model_computes_what_the_parameters_of_all_heads_of_a_group_make(grouped):
    lens, item, head = grouped
    with Exact():
        found, parameters, run = made(lens, item, head, 0.01, seeded())
        plain = lens.substitute({}, item)
    assert_close(parameters.weights, found.weights, atol=1e-10, rtol=0)
    assert 0.01 <= float((found.weights - head.attention).abs().sum(-1).mean()) / 2 < 0.011
    assert compare_runs(plain, run).hidden < 1e-12
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


def test_a_search_that_fails_leaves_its_reason(grouped, monkeypatch):
    lens, item, head = grouped

    def fails(*given, **options):
        raise InputError("no way")

    monkeypatch.setattr(groups, "realisable_alternative", fails)
    with Exact():
        found, parameters, run = made(lens, item, head, 0.01, seeded())
    assert (found.weights, parameters.weights, run) == (None, None, None)
    assert found.note == parameters.note == "no way"
    assert found.dimension == found.formula > 0
    noted = or_note("far", fails)
    assert (noted.name, noted.weights, noted.note) == ("far", None, "no way")


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
