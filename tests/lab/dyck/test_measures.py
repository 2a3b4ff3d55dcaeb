"""Accuracy, attention variation, stack-likeness and balance, against answers known beforehand."""

from itertools import product

import pytest
import torch

from helpers.brackets import close_symbol, is_valid, open_symbol, read_brackets
from helpers.heads import causal, seeded, softmax_of
from identilens.lab.dyck.balance import SecondLayer, measure_balance, pair_sizes
from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.embeddings import symbol_ids, symbols
from identilens.lab.dyck.language import SPECIAL, START, Dyck, with_start
from identilens.lab.dyck.minimiser import minimise, predict
from identilens.lab.dyck.parsing import next_token_distribution, parse
from identilens.lab.dyck.prefixes import all_prefixes
from identilens.lab.dyck.sufficiency import balanced_scores
from identilens.lab.dyck.train.measuring import (
    attention_variation,
    random_baselines,
    stack_likeness,
)
from identilens.lab.dyck.training import new_model

LANGUAGE = Dyck(2, 3)


def causal_patterns(seeds, n, seed=0):
    logits = torch.randn(seeds, n, n, generator=seeded(seed))
    return softmax_of(logits, causal(n))


def test_variation_of_patterns_worked_out_by_hand():
    first = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]])
    second = torch.tensor([[1.0, 0, 0], [0.1, 0.9, 0], [0.2, 0.8, 0.0]])
    patterns = torch.stack([first, second])
    assert attention_variation(patterns)["value"] == pytest.approx(0.4**2 + 0.5**2 + 0.5**2)
    whole = attention_variation(patterns, with_start=True)
    assert whole["value"] == pytest.approx(2 * 0.4**2 + 2 * 0.5**2)
    assert (whole["size"], attention_variation(patterns)["size"]) == (3, 2)


def test_the_error_of_variation_is_a_jackknife():
    patterns = causal_patterns(6, 9)
    found = attention_variation(patterns)
    left_out = []
    for seed in range(6):
        kept = torch.cat([patterns[:seed], patterns[seed + 1 :]])[:, 1:, 1:].double()
        pairs = [
            (kept[i] - kept[j]).square().sum() for i, j in product(range(5), repeat=2) if i != j
        ]
        left_out.append(torch.stack(pairs).mean())
    left = torch.stack(left_out)
    assert found["error"] == pytest.approx(
        float((5 / 6 * (left - left.mean()).square().sum()).sqrt()), rel=1e-6
    )


@pytest.mark.parametrize("with_start", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_baselines_are_the_variation_of_random_patterns_treated_alike(causal, with_start):
    seen = torch.ones(6, 6).tril() if causal else torch.ones(6, 6)
    # Exponential weights that are normalised are uniform on the simplex.
    even = torch.empty(1000, 6, 6).exponential_(generator=seeded())
    normals = torch.randn(1000, 6, 6, generator=seeded(1))
    baselines = random_baselines(6, with_start=with_start)
    for name, drawn in (("even_on_simplex", even), ("softmax_of_normals", normals.exp())):
        weights = seen * drawn
        measured = attention_variation(
            weights / weights.sum(-1, keepdim=True), with_start=with_start
        )
        expected = pytest.approx(measured["value"], abs=5 * measured["error"])
        assert baselines[name, causal] == expected


def test_a_stack_is_stack_like_and_even_attention_is_not():
    tokens = with_start(LANGUAGE.sample_prefixes(20, 30, seeded()))
    top = parse(LANGUAGE, tokens).top_place.clamp_min(0)
    pointing = torch.nn.functional.one_hot(top, 31).float()
    found = stack_likeness(LANGUAGE, pointing, tokens)
    assert (found["stack_weight"], found["stack_first"]) == (1.0, 1.0)
    even = torch.ones(20, 31, 31).tril()
    even = even / even.sum(-1, keepdim=True)
    spread = stack_likeness(LANGUAGE, even, tokens)
    assert spread["stack_weight"] == pytest.approx(spread["even_weight"], rel=1e-5)


def layer_of(seed, spread=1.0, size=24):
    """A second layer with random logits and values."""
    generator = seeded(seed)
    count = symbols(LANGUAGE)
    scores = spread * torch.randn(count, count, dtype=torch.float64, generator=generator)
    values = torch.randn(count, size, dtype=torch.float64, generator=generator)
    return SecondLayer(scores, values)


def output_at(layer, tokens):
    """Unnormalised attention output at the last of some symbols, scaled as `pair_sizes` scales it."""
    own = layer.scores[tokens[-1]]
    weights = (own[tokens] - own.max()).exp()
    values = layer.values - layer.values.mean(1, keepdim=True)
    return (weights[:, None] * values[tokens]).sum(0)


def test_pairs_and_prefixes_are_what_the_layer_gives_on_sequences():
    layer = layer_of(0)
    pairs, prefixes = pair_sizes(LANGUAGE, layer)
    d, j = 2, 1
    outputs = {}
    for types in product(range(2), repeat=d):
        text = "".join("(["[kind] for kind in types) + "[]"
        tokens = symbol_ids(LANGUAGE, with_start(read_brackets(LANGUAGE, text)[None])[0])
        assert tokens[-1] == close_symbol(LANGUAGE, j, d)
        outputs[types] = output_at(layer, tokens)
    norms = {types: float(output.norm()) for types, output in outputs.items()}
    least = min(norms, key=norms.__getitem__)
    other = min((types for types in norms if types[-1] != least[-1]), key=norms.__getitem__)
    assert float(prefixes[d - 1, j]) == pytest.approx(norms[other])
    # A pair of type 0 put in front of the same prefix changes the output by S.
    text = "()" + "(["[least[0]] + "(["[least[1]] + "[]"
    tokens = symbol_ids(LANGUAGE, with_start(read_brackets(LANGUAGE, text)[None])[0])
    change = output_at(layer, tokens) - outputs[least]
    assert float(pairs[d - 1, 0, 0, j]) == pytest.approx(float(change.norm()))
    found = measure_balance(LANGUAGE, layer)
    assert found.largest_violation >= found.violation > 0.1


def test_balance_is_zero_where_pairs_cancel():
    scores = balanced_scores(LANGUAGE, 1.0, seeded())
    values = torch.randn(symbols(LANGUAGE), 24, dtype=torch.float64, generator=seeded(1))
    query = close_symbol(LANGUAGE, 0, 1)
    for i, depth in product(range(2), range(1, 4)):
        one, other = open_symbol(LANGUAGE, i, depth), close_symbol(LANGUAGE, i, depth - 1)
        values[other] = -values[one] * torch.exp(scores[query, one] - scores[query, other])
    found = measure_balance(LANGUAGE, SecondLayer(scores, values))
    assert found.violation < 1e-12
    assert found.condition < 1e-12
    scores[query, open_symbol(LANGUAGE, 0, 2)] += 0.1
    broken = measure_balance(LANGUAGE, SecondLayer(scores, values))
    assert broken.condition == pytest.approx(0.1)
    assert broken.violation > 1e-4


SHALLOW = Dyck(2, 2, 0.6)
CONFIG = DyckConfig(
    max_depth=2, open_probability=0.6, block="paper", first_layer="one-hot", num_hidden_layers=1, hidden_size=12,
    projection_widths=[[12]], projection_residual=False, norm_constant=0.1, initializer_range=0.3,
)  # fmt: skip


def written(length):
    """Every prefix of so many brackets behind a start token, its probability, and the law of what follows."""
    tokens = torch.tensor(list(product([START], *[range(SPECIAL, SHALLOW.vocabulary)] * length)))
    tokens = tokens[is_valid(SHALLOW, tokens)]
    found = parse(SHALLOW, tokens)
    law = next_token_distribution(SHALLOW, found.depth, found.top_type)
    steps = law[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]
    return tokens, steps.prod(1), law[:, -1]


def test_all_prefixes_are_those_of_the_law():
    found, length = all_prefixes(SHALLOW, 6), 6
    assert float(found.share.sum()) == pytest.approx(1)
    held = {
        (int(last), *counts): row
        for row, (last, counts) in enumerate(zip(found.last, found.counts.tolist(), strict=True))
    }
    share = torch.zeros_like(found.share)
    for size in range(length):
        tokens, chances, laws = written(size)
        ids = symbol_ids(SHALLOW, tokens)
        counts = torch.nn.functional.one_hot(ids, symbols(SHALLOW)).sum(1).tolist()
        for last, count, chance, law in zip(
            ids[:, -1].tolist(), counts, chances, laws, strict=True
        ):
            row = held[(last, *count)]
            share[row] += chance / length
            assert torch.allclose(found.law[row], law)
    assert torch.allclose(share, found.share, atol=1e-15)


def test_predictions_are_the_models():
    model = new_model(CONFIG, 0).double()
    tokens, _, _ = written(5)
    ids = symbol_ids(SHALLOW, tokens)
    counts = torch.nn.functional.one_hot(ids, symbols(SHALLOW)).sum(1)
    prefixes = all_prefixes(SHALLOW, 6)
    with torch.no_grad():
        logits, given = model(tokens).logits[:, -1], predict(model, prefixes)
    for last, count, wanted in zip(ids[:, -1], counts, logits, strict=True):
        row = ((prefixes.last == last) & (prefixes.counts == count).all(1)).nonzero().item()
        assert torch.allclose(given[row], wanted, atol=1e-12)


def test_the_objective_falls_and_weights_grow_as_lambda_goes_to_0():
    prefixes, strengths = all_prefixes(SHALLOW, 6), (1e-2, 1e-3, 1e-4)
    found = list(minimise(CONFIG, prefixes, strengths, 0, 150))
    assert [one["strength"] for one in found] == list(strengths)
    losses, norms = [one["loss"] for one in found], [one["norm"] for one in found]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.002
    assert norms == sorted(norms)
    assert all(
        one["objective"] == pytest.approx(one["loss"] + one["strength"] / 2 * one["norm"] ** 2)
        for one in found
    )
    assert found[0]["gradient"] < 0.2
    again = minimise(CONFIG, prefixes, strengths[:1], 0, 150)
    assert next(again)["violation"] == found[0]["violation"]
