"""Corollary 1, Theorem 1 and Theorem 3 as weights."""

import itertools

import polars as pl
import pytest
import torch

import identilens as idl
from identilens.errors import InputError
from identilens.lab.dyck.balance import measure_balance
from identilens.lab.dyck.embeddings import symbols
from identilens.lab.dyck.evaluation import closing_accuracy, support_accuracy
from identilens.lab.dyck.language import Dyck, with_start
from identilens.lab.dyck.plain import run_layers, small_target, without_dead_units
from identilens.lab.dyck.prune import approximation_error
from identilens.lab.dyck.pruning import (
    Sizes,
    closest_subsets,
    is_pruning,
    prune_to,
    random_transformer,
)
from identilens.lab.dyck.sufficiency import balanced_scores, sufficient_model
from identilens.lab.dyck.train.measuring import dyck_lens
from identilens.lab.dyck.uniform import uniform_second_layer, uniform_transformer

QUICK = {"inputs": 100, "starts": 4, "steps": 30}


def prefixes(language, length, count=3, seed=0):
    return with_start(language.sample_prefixes(count, length, torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize(
    ("language", "length"),
    [
        (Dyck(2, 4), 2000),
        (Dyck(3, 8, 0.6), 2000),
        (Dyck(1, 1), 60),
        (Dyck(2, 1, 0.2), 60),
        (Dyck(4, 2), 300),
    ],
)
def test_uniform_attention_generates_dyck_of_any_length(language, length):
    model = uniform_transformer(language)
    tokens = prefixes(language, length)
    assert support_accuracy(model, tokens) == 1
    found = closing_accuracy([model], tokens)[0]
    assert (found.argmax, found.threshold) == (1, 1)
    if language.types > 1 and language.max_depth > 1:
        assert measure_balance(language, uniform_second_layer(language, model)).violation < 1e-6


def test_its_attention_is_uniform_and_its_law_the_languages():
    language = Dyck(2, 3, 0.3)
    model = uniform_transformer(language, dtype=torch.float64)
    lens = dyck_lens(model, "uniform")
    captured = next(lens.capture(["([])[[]](("], weights=True))
    for head in captured.heads:
        even = torch.ones_like(head.weights).tril()
        assert torch.allclose(head.weights, even / even.sum(-1, keepdim=True))
    with torch.no_grad():
        law = torch.softmax(model(torch.tensor([[1, 3]])).logits[0], -1)
    assert law[0].tolist() == pytest.approx([0, 0, 0, 0.5, 0.5, 0, 0], abs=1e-9)
    assert law[1].tolist() == pytest.approx([0, 0, 0, 0.15, 0.15, 0.7, 0], abs=1e-9)


@pytest.mark.parametrize(("types", "depth", "spread"), [(2, 3, 2.0), (3, 2, 0.0), (2, 5, 1.0)])
def test_balanced_attention_of_any_shape_suffices(types, depth, spread):
    language = Dyck(types, depth, 0.4)
    generator = torch.Generator().manual_seed(types)
    count = symbols(language)
    embeddings = torch.randn(count, count + 5, dtype=torch.float64, generator=generator)
    scores = balanced_scores(language, spread, generator)
    model = sufficient_model(language, embeddings, scores)
    tokens = prefixes(language, 400)
    assert support_accuracy(model, tokens) == 1
    assert closing_accuracy([model], tokens)[0].argmax == 1
    # The model's own attention is the one asked for.
    captured = next(dyck_lens(model, "balanced").capture([tokens[0, :9].tolist()], weights=True))
    weights = next(captured.heads).weights
    assert float((weights[-1].max() / weights[-1].min()).log()) <= 2 * 2 * spread + 1e-9


def test_off_balance_breaks_it_more_the_longer_the_prefix():
    built = idl.lab.construct_dyck(
        depth=3, lengths=(20, 300), count=10, off_balance=(0.0, 0.5), seed=1
    )
    balanced = built.table.filter(construction="balanced").select("off_balance", "length", "argmax")
    scores = {(size, length): argmax for size, length, argmax in balanced.iter_rows()}
    assert scores[0.0, 20] == scores[0.0, 300] == 1
    assert scores[0.5, 300] < 0.95
    assert scores[0.5, 300] < scores[0.5, 20]


def test_what_theorem_1_does_not_cover_is_refused():
    language = Dyck(2, 2)
    scores = torch.randn(9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match=r"satisfy the balance condition \(Eq. 11\)"):
        sufficient_model(language, torch.eye(9, 12), scores)
    with pytest.raises(
        InputError, match="9 linearly independent embeddings, one per symbol, got 8 dimensions"
    ):
        sufficient_model(language, torch.randn(9, 8), torch.zeros(9, 9).double())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"types": 1}, "expected types of at least 2; got 1"),
        ({"depth": 1}, "expected depth of at least 2; got 1"),
        ({"lengths": (10, 1)}, "expected lengths of at least 2; got 1"),
        ({"lengths": ()}, "expected lengths with at least one value"),
        ({"off_balance": (-1.0,)}, "expected off_balance of at least 0; got -1"),
    ],
)
def test_impossible_constructions(options, message):
    with pytest.raises(InputError, match=message):
        idl.lab.construct_dyck(**options)


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_subsets_are_the_closest(count):
    generator = torch.Generator().manual_seed(count)
    values = 2 * torch.rand(20, count, dtype=torch.float64, generator=generator) - 1
    targets = 2 * torch.rand(20, dtype=torch.float64, generator=generator) - 1
    chosen = closest_subsets(values, targets)
    every = torch.tensor(list(itertools.product([0.0, 1.0], repeat=count))).double()
    best = (values @ every.T - targets[:, None]).abs().amin(1)
    assert torch.allclose(((values * chosen).sum(1) - targets).abs(), best, atol=1e-12)
    with pytest.raises(InputError, match="at most 32 numbers to choose from, got 33"):
        closest_subsets(torch.zeros(1, 33), torch.zeros(1))


def test_pruned_random_transformers_compute_small_ones():
    targets = [small_target(size=2, key_size=2, width=3, seed=seed) for seed in range(2)]
    errors = []
    for candidates in (4, 16):
        sizes = Sizes(candidates, 2, 3)
        large = random_transformer(sizes, 4, 0.1, 0)
        pruned = [prune_to(target, large, sizes, untouched=2) for target in targets]
        assert all(is_pruning(found, large) for found in pruned)
        errors.append(approximation_error(targets[0], pruned[0], **QUICK).maximised)
        first, second = (found[2].matrices for found in pruned)
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert not torch.equal(pruned[0][1].query, pruned[1][1].query)
    assert errors[1] < 0.01 < errors[0]
    assert approximation_error(targets[0], targets[1], **QUICK).sampled > 0.1
    with pytest.raises(InputError, match="1 pairs of layers do not fit into 1 layers"):
        prune_to(targets[0], large[:1], sizes)


def test_a_changed_weight_is_no_pruning():
    sizes = Sizes(4, 2, 3)
    large = random_transformer(sizes, 2, 0.1, 0)
    pruned = prune_to(small_target(size=2, key_size=2, width=3), large, sizes)
    assert is_pruning(pruned, large)
    pruned[0].projection[0][pruned[0].projection[0] != 0] *= 1.001
    assert not is_pruning(pruned, large)


def test_dead_units_change_nothing():
    sizes = Sizes(5, 2, 3)
    large = random_transformer(sizes, 2, 0.1, 0)
    pruned = prune_to(small_target(size=2, key_size=2, width=3), large, sizes)
    x = torch.randn(
        3, 5, sizes.embedding, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    lean = [without_dead_units(layer) for layer in pruned]
    assert lean[1].projection[0].shape[0] < pruned[1].projection[0].shape[0]
    assert torch.allclose(run_layers(lean, x), run_layers(pruned, x), atol=1e-12)


def test_error_by_width(tmp_path):
    small = {
        "size": 2,
        "width": 2,
        "candidates": (3, 14),
        "seeds": 2,
        "inputs": 50,
        "starts": 2,
        "steps": 20,
        "shared_layer": 1,
    }
    table = idl.lab.prune_dyck(**small, out=tmp_path / "run").table
    assert table["shared"].all()
    assert table["pruning"].all()
    means = table.group_by("candidates", maintain_order=True).agg(pl.col("error").mean())["error"]
    assert means[1] < means[0] / 5
    assert (table["error"] > table["sampled_error"]).all()
    assert (table["other_error"] > table["other_sampled_error"]).all()
    again = idl.lab.prune_dyck(**small, key_size=2, out=tmp_path / "run", resume=True)
    assert again.table.equals(table), "queries and keys have the size of the embeddings"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": (4, 30)}, "expected candidates of at most 24; got 30"),
        ({"candidates": ()}, "expected candidates with at least one value"),
        ({"shared_layer": 4}, "expected shared_layer from 0 to 3; got 4"),
        ({"size": 0}, "expected size of at least 1; got 0"),
        ({"norm_constant": 0}, "expected norm_constant above 0"),
    ],
)
def test_impossible_prunings(options, message):
    with pytest.raises(InputError, match=message):
        idl.lab.prune_dyck(**options)
