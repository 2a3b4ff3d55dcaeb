"""Corollary 1, Theorem 1 and Theorem 3 as weights."""

import itertools

import pytest
import torch

from helpers.heads import drawn, normals, seeded, uniforms
from identilens.lab.dyck.balance import measure_balance, second_layer
from identilens.lab.dyck.embeddings import symbols
from identilens.lab.dyck.evaluation import closing_accuracy, support_accuracy
from identilens.lab.dyck.language import Dyck, with_start
from identilens.lab.dyck.modeling import attention_weights
from identilens.lab.dyck.plain import small_target
from identilens.lab.dyck.prune import approximation_error
from identilens.lab.dyck.pruning import (
    closest_subsets,
    prune_to,
    random_transformer,
)
from identilens.lab.dyck.sufficiency import (
    balanced_scores,
    sufficient_model,
    uniform_embeddings,
    uniform_transformer,
)
from identilens.lab.dyck.train.measuring import dyck_lens

QUICK = {"inputs": 100, "starts": 4, "steps": 30}


def prefixes(language, length, count=3, seed=0):
    return with_start(language.sample_prefixes(count, length, seeded(seed)))


@pytest.mark.parametrize(
    ("language", "length"),
    [
        (Dyck(2, 4), 2000), (Dyck(3, 8, 0.6), 2000), (Dyck(1, 1), 60), (Dyck(2, 1, 0.2), 60), (Dyck(4, 2), 300),
    ],
)  # fmt: skip
def test_uniform_attention_generates_dyck_of_any_length(language, length):
    model = uniform_transformer(language)
    tokens = prefixes(language, length)
    assert support_accuracy(model, tokens) == 1
    found = closing_accuracy(model, tokens)
    assert (found.argmax, found.threshold) == (1, 1)
    if language.types > 1 and language.max_depth > 1:
        layer = second_layer(uniform_embeddings(language), *attention_weights(model, 1))
        assert measure_balance(language, layer).violation < 1e-6


def test_its_attention_is_uniform_and_its_law_the_languages():
    language = Dyck(2, 3, 0.3)
    model = uniform_transformer(language).double()
    lens = dyck_lens(model)
    captured = next(lens.capture(["([])[[]](("], weights=True))
    for head in captured.heads:
        even = torch.ones_like(head.weights).tril()
        assert torch.allclose(head.weights, even / even.sum(-1, keepdim=True))
    with torch.no_grad():
        law = torch.softmax(model(torch.tensor([[1, 3]])).logits[0], -1)
    assert law[0].tolist() == pytest.approx([0, 0, 0, 0.5, 0.5, 0, 0], abs=1e-6)
    assert law[1].tolist() == pytest.approx([0, 0, 0, 0.15, 0.15, 0.7, 0], abs=1e-6)


@pytest.mark.parametrize(("types", "depth", "spread"), [(2, 3, 2.0), (3, 2, 0.0), (2, 5, 1.0)])
def test_balanced_attention_of_any_shape_suffices(types, depth, spread):
    language = Dyck(types, depth, 0.4)
    generator = seeded(types)
    count = symbols(language)
    embeddings = normals(generator, count, count + 5)
    scores = balanced_scores(language, spread, generator)
    model = sufficient_model(language, embeddings, scores)
    tokens = prefixes(language, 400)
    assert support_accuracy(model, tokens) == 1
    assert closing_accuracy(model, tokens).argmax == 1
    # The model's own attention is the one asked for.
    captured = next(dyck_lens(model).capture([tokens[0, :9].tolist()], weights=True))
    weights = next(captured.heads).weights
    assert float((weights[-1].max() / weights[-1].min()).log()) <= 2 * 2 * spread + 1e-9


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_subsets_are_the_closest(count):
    generator = seeded(count)
    values = 2 * uniforms(generator, 20, count) - 1
    targets = 2 * uniforms(generator, 20) - 1
    chosen = closest_subsets(values, targets)
    every = torch.tensor(list(itertools.product([0.0, 1.0], repeat=count))).double()
    best = (values @ every.T - targets[:, None]).abs().amin(1)
    assert torch.allclose(((values * chosen).sum(1) - targets).abs(), best, atol=1e-12)


def is_pruning(pruned, large):
    """Whether every weight is the random one or zero (Definition 4)."""
    weights = [weight for layer in pruned for weight in layer]
    drawn = [weight for layer in large for weight in layer]
    return all(
        bool(((weight == 0) | (weight == before)).all())
        for weight, before in zip(weights, drawn, strict=True)
    )


def test_pruned_random_transformers_compute_small_ones():
    targets = [small_target(1, 2, 3, seed) for seed in range(2)]
    errors = []
    for candidates in (4, 16):
        large = random_transformer(candidates, 2, 3, 4, 0)
        pruned = [prune_to(target, large, candidates) for target in targets]
        assert all(is_pruning(found, large) for found in pruned)
        errors.append(approximation_error(targets[0], pruned[0], **QUICK)[1])
        assert all(map(torch.equal, pruned[0][0], pruned[1][0]))
        assert not torch.equal(pruned[0][2][0], pruned[1][2][0])
    assert errors[1] < 0.01 < errors[0]
    assert approximation_error(targets[0], targets[1], **QUICK)[0] > 0.1


SEARCH = {"inputs": 50, "length": 3, "starts": 6, "steps": 80}


def unmixed(inner, outer):
    """A layer without attention: outer · relu(inner · x)."""
    none = torch.zeros(inner.shape[1], inner.shape[1]).double()
    return [(none, none, none, inner, outer)]


def linear(weight):
    """A layer that is a linear map."""
    identity = torch.eye(weight.shape[1]).double()
    return unmixed(torch.cat([identity, -identity]), torch.cat([weight, -weight], 1))


WEIGHT, INNER, OUTER = drawn(8, 8), drawn(1, 8), drawn(8, 1, seed=1)


@pytest.mark.parametrize(
    ("layer", "other", "known"),
    [
        (linear(WEIGHT), linear(0 * WEIGHT), torch.linalg.matrix_norm(WEIGHT, 2)),
        (unmixed(INNER, OUTER), unmixed(INNER, 0 * OUTER), INNER.norm() * OUTER.norm()),
    ],
    ids=["a linear map", "a single relu"],
)
def test_the_largest_error_is_the_spectral_norm(layer, other, known):
    found, known = approximation_error(layer, other, **SEARCH), float(known)
    assert found[0] < 0.95 * known
    assert found[1] == pytest.approx(known, rel=1e-4)
    assert found[1] <= known * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("starts", "steps"), [(1, 1), (3, 5)])
def test_the_maximised_error_is_never_below_the_sampled_one(seed, starts, steps):
    target = small_target(1, 2, 3, seed)
    pruned = prune_to(target, random_transformer(4, 2, 3, 4, seed), 4)
    found = approximation_error(target, pruned, inputs=60, starts=starts, steps=steps)
    assert found[1] >= found[0] > 0
    assert found == approximation_error(target, pruned, inputs=60, starts=starts, steps=steps)
    assert approximation_error(target, target, **SEARCH)[1] == 0
