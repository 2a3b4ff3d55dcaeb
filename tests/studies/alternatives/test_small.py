"""Alternatives of heads that share keys, and of heads that have none, on models small enough for every run."""

from types import SimpleNamespace

import pytest
import torch
import transformers as hf

import identilens as idl
from helpers import zoo
from identilens.errors import InputError
from identilens.models.reading import read_head
from identilens.models.replaying import Float64
from identilens.studies.alternatives import groups
from identilens.studies.alternatives.groups import made
from identilens.studies.alternatives.search import (
    alternatives_of,
    by_parameters,
    dimension_notes,
    none_near,
    or_note,
    realisable,
)
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
    with Float64():
        [item] = lens.read([zoo.ids(6)])
        head = read_head(lens, item, 0, 1)
    return lens, item, head


def seeded():
    return torch.Generator().manual_seed(0)


def walk(reached=True):
    """A walk of one small step in place of one that keeps the outputs, which takes long."""

    def step(tied, *, distance, generator, memory_limit):
        move = 0.01 * torch.randn(tied.parameters.shape, generator=generator, dtype=torch.float64)
        parameters = tied.parameters + move
        weights = tied.weights(parameters)
        return SimpleNamespace(
            parameters=parameters, weights=weights, reached=reached, distance=0.25, steps=7
        )

    return step


def test_the_model_computes_what_the_parameters_of_all_heads_of_a_group_make(grouped, monkeypatch):
    lens, item, head = grouped
    monkeypatch.setattr(groups, "tied_alternative", walk())
    with Float64():
        found, parameters, run = made(lens, item, head, 0.01, seeded())
        plain = lens.substitute({}, item)
    torch.testing.assert_close(parameters.weights, found.weights, atol=1e-10, rtol=0)
    assert 1e-4 < float((found.weights - head.attention).abs().max()) < 0.1
    assert 1e-6 < compare_runs(plain, run).hidden < 0.1
    assert (found.name, parameters.name) == ("realisable", "parameters")
    assert found.dimension == found.formula == parameters.dimension == parameters.formula > 0
    assert parameters.queries is parameters.keys is None
    assert found.note == (
        "its keys serve 2 query heads: all of them take new ones, and each keeps its output"
    )
    assert parameters.moved.keys() == {"q_proj.weight", "k_proj.weight"}
    assert 0.01 < min(parameters.moved.values()) < 1
    logits = head.scaling * found.queries @ found.keys.mT
    hidden = ~torch.ones(6, 6, dtype=torch.bool).tril()
    torch.testing.assert_close(
        logits.masked_fill(hidden, -torch.inf).softmax(-1), found.weights, atol=1e-10, rtol=0
    )


def test_a_walk_that_ends_early_and_a_dimension_that_is_not_counted_are_said(grouped, monkeypatch):
    lens, item, head = grouped

    def no_memory(*given, **options):
        raise InputError("too much memory")

    monkeypatch.setattr(groups, "tied_dimension", no_memory)
    monkeypatch.setattr(groups, "tied_alternative", walk(reached=False))
    with Float64():
        far, parameters, _ = made(lens, item, head, 0.9, seeded())
    assert far.note == (
        "stopped at 0.250 of 0.9 after 7 steps; its keys serve 2 query heads: all of them take new ones, and each "
        "keeps its output; the dimension was not counted: that takes too much memory"
    )
    assert far.dimension is far.formula is parameters.dimension is None


def test_where_no_direction_is_free_both_say_so(grouped):
    lens, _, _ = grouped
    with Float64():
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

    monkeypatch.setattr(groups, "tied_alternative", fails)
    with Float64():
        found, parameters, run = made(lens, item, head, 0.01, seeded())
    assert (found.weights, parameters.weights, run) == (None, None, None)
    assert found.note == parameters.note == "no way"
    assert found.dimension == found.formula > 0
    noted = or_note("far", fails)
    assert (noted.name, noted.weights, noted.note) == ("far", None, "no way")


def test_without_queries_and_keys_no_parameters_are_made(grouped):
    lens, item, head = grouped
    sampled, *_ = alternatives_of(head, 1, seeded())
    none, run = by_parameters(lens, item, head, sampled)
    assert (none.name, none.weights, run) == ("parameters", None, None)
    assert none.note == "no queries and keys to make"
    assert set(sampled.tensors()) == {"alternative_sampled"}


@pytest.mark.parametrize(
    ("family", "note"),
    [
        ("gemma2", "the weights are not softmax(s Q Kᵀ + bias): soft-capped logits"),
        (
            "gpt_oss",
            "the weights are not softmax(s Q Kᵀ + bias): an attention sink or logits that are changed",
        ),
    ],
)
def test_heads_of_other_logits_have_no_realisable_alternative(family, note):
    lens = idl.Lens(zoo.build(family))
    [item] = lens.read([zoo.ids(6)])
    found = realisable(read_head(lens, item, 0, 1), 0.01, seeded())
    assert (found.weights, found.dimension, found.note) == (None, None, note)


def dimension(**given):
    fields = {
        "dimension": 5, "formula": 5, "regular": True, "parameters": 20, "gauge": 6, "weights_rank": 9,
    }  # fmt: skip
    return SimpleNamespace(**(fields | given))


@pytest.mark.usefixtures("unchecked_shapes")
def test_what_a_reader_of_a_dimension_must_know():
    assert list(dimension_notes(dimension())) == []
    assert list(dimension_notes(dimension(formula=None))) == []
    assert list(dimension_notes(dimension(formula=4))) == [
        "the dimension differs from the generic 4"
    ]
    [first] = dimension_notes(dimension(regular=False))
    assert first.startswith("the dimension is one to first order only")
    assert none_near(dimension(dimension=0)) == (
        "no realisable alternative lies near: the local dimension is 0. Of the 20 directions in which the queries and "
        "keys, or what makes them, can move, 6 change no weight, and every combination of the other 9 changes an output"
    )
    assert "lies near, to first order: the" in none_near(dimension(regular=False))
