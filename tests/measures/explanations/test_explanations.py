"""Explanations of rows, orders, agreement and intervals, against plain references and cases made by hand."""

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap, spearmanr
from scipy.stats import t as student
from torch.testing import assert_close

from helpers.heads import causal, doubles, drawn, random_weights, seeded
from identilens.linalg import ProjectedValues
from identilens.measures.attention import attention_intervals
from identilens.measures.explanations import (
    explain_rows,
    normalised_area,
    order_bounds,
    permutation_p,
    rank_agreement,
    value_zeroing,
)
from identilens.measures.explanations.agreement import Interval, bootstrap_interval
from identilens.measures.explanations.orders import OrderBounds, removal_order, removal_sets


@pytest.mark.parametrize("levels", [None, 3])
def test_agreement_is_scipys_spearman_with_ties_and_hidden_parts(levels):
    first, second = drawn(5, 12), drawn(5, 12, seed=1)
    if levels:
        first, second = ((one * levels / 2).round() for one in (first, second))
    visible = torch.arange(12) < torch.tensor([[12], [9], [5], [12], [2]])
    found = rank_agreement(first, second, visible)
    for row, (a, b, seen) in enumerate(zip(first, second, visible, strict=True)):
        assert float(found[row]) == pytest.approx(
            spearmanr(a[seen], b[seen]).statistic, nan_ok=True
        )


def test_rounding_makes_no_order_and_constant_rows_have_none(unchecked_shapes):
    scores = doubles([1.0, 0.5, 1e-9, 2e-9, 0.0])
    noisy = doubles([1.0, 0.5, 0.0, 1e-9, 3e-9])
    assert float(rank_agreement(scores, noisy)) == pytest.approx(1)
    assert rank_agreement(torch.ones(4), torch.arange(4.0)).isnan()


def test_scores_a_rounding_apart_are_equal_wherever_they_lie_and_others_are_not(unchecked_shapes):
    """On a grid of 1e-6, the first pair fell on both sides of a boundary, and the second into one cell."""
    near = doubles([1.0, 0.5 + 5e-7 + 1e-12, 0.5 + 5e-7 - 1e-12])
    assert float(rank_agreement(near, doubles([1.0, 0.5, 0.5]))) == pytest.approx(1)
    apart = doubles([1.0, 3.4e-6, 2.2e-6, 0.9e-6])
    assert float(rank_agreement(apart, doubles([4.0, 3.0, 2.0, 1.0]))) == pytest.approx(1)
    orders = {tuple(removal_order(near, seeded(seed)).tolist()) for seed in range(20)}
    assert orders == {(0, 1, 2), (0, 2, 1)}
    assert {tuple(removal_order(apart, seeded(seed)).tolist()) for seed in range(20)} == {
        (0, 1, 2, 3)
    }


def test_with_a_tolerance_the_agreement_is_the_cosine_of_ranks_and_not_spearmans():
    """0 ties with 1 and 1 with 2, but 0 does not tie with 2: no averaged ranks say that."""
    scores, effects = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([1.0, 1.8, 2.6]).double()
    ranks = torch.tensor(
        [-1.0, 0.0, 1.0]
    ).double()  # parts below less parts above, of effects with a floor of 1
    own = torch.tensor([-2.0, 0.0, 2.0]).double()
    assert float(rank_agreement(scores, effects, floor=1.0)) == pytest.approx(
        float(torch.cosine_similarity(own, ranks, 0))
    )


def test_parts_of_equal_score_are_in_random_order():
    scores = torch.tensor([0.0, 2.0, 0.0, 1.0, 0.0])
    orders = torch.stack([removal_order(scores, seeded(seed)) for seed in range(40)])
    assert (orders[:, :2] == torch.tensor([1, 3])).all()
    assert len({tuple(order[2:].tolist()) for order in orders}) == 6
    assert removal_sets(orders[:1], [1, 2, 5])[0].sum(-1).tolist() == [1, 2, 5]


@pytest.mark.parametrize("seed", range(4))
def test_greedy_orders_lie_between_the_best_and_the_worst(seed):
    """Effects with interactions, so that single effects do not give the best order; all orders as the reference."""
    pairs = drawn(5, 5, seed=seed)

    def effect(sets):
        held = sets.double()
        return torch.einsum("si,ij,sj->s", held, pairs, held).tanh()

    singles, sizes = effect(torch.eye(5, dtype=torch.bool)), [1, 2, 3, 4]
    areas = torch.stack(
        [
            effect(removal_sets(torch.tensor(order), sizes)).mean(-1)
            for order in permutations(range(5))
        ]
    )
    exact = OrderBounds(float(areas.min()), float(areas.max()))
    greedy = order_bounds(effect, singles, sizes)
    assert exact.lowest - 1e-12 <= greedy.lowest <= greedy.highest <= exact.highest + 1e-12
    placed = normalised_area(areas, exact)
    assert (float(placed.min()), float(placed.max())) == pytest.approx((0, 1))


def test_groups_and_a_pool_of_an_additive_effect():
    parts = torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0, 0.5])
    found = order_bounds(lambda sets: sets.float() @ parts, parts, [1, 2, 4], pool=4)
    assert (found.lowest, found.highest) == pytest.approx(((0.5 + 1.5 + 6.5) / 3, (5 + 9 + 14) / 3))
    known = doubles([9.0, 2.0])
    wider = order_bounds(lambda sets: sets.float() @ parts, parts, [1, 2, 4], pool=4, known=known)
    assert (wider.lowest, wider.highest) == pytest.approx((2.0, 28 / 3))
    assert normalised_area(torch.ones(2), OrderBounds(1.0, 1.0)).isnan().all()


@pytest.mark.parametrize("masked", [False, True])
def test_explanations_of_rows_are_those_of_whole_maps_and_of_plain_formulas(masked):
    n, visible = 9, causal(9) if masked else None
    weights, T = random_weights(3, n, 4, visible=visible)
    rows = [2, 5, 8]
    seen = None if visible is None else visible[rows]
    found = explain_rows(weights[rows], ProjectedValues.of(T), seen)
    for at, row in enumerate(rows):
        keys = torch.arange(n) if visible is None else torch.nonzero(visible[row]).flatten()
        a, values = weights[row, keys], T[keys]
        output = a @ values
        lengths = a * values.norm(dim=-1)
        projector = values @ torch.linalg.pinv(values)
        others = torch.stack(
            [(output - one * value) / (1 - one) for one, value in zip(a, values, strict=True)]
        )
        expected = {
            "raw": a, "effective": (a @ projector).abs(), "norm": lengths / lengths.sum(),
            "contribution": (a * (values @ output) / output.square().sum()).abs(),
            "removal": (others - output).norm(dim=-1),
            "certain": attention_intervals(weights[row], T, visible=None if visible is None else visible[row]).lo[keys],
        }  # fmt: skip
        for name, scores in expected.items():
            assert_close(found[name][at, keys], scores, rtol=1e-7, atol=1e-9)
            assert float(found[name][at].sum()) == pytest.approx(float(scores.sum()), abs=1e-8)


def test_value_zeroing_is_the_cosine_distance():
    output, without = drawn(3, 6), drawn(4, 3, 6, seed=1)
    expected = 1 - torch.nn.functional.cosine_similarity(without, output, dim=-1)
    assert_close(value_zeroing(output, without), expected.mT)


SKEWED = {
    "normal": lambda random, shape: random.normal(0.9, 1.0, shape),
    "near one": lambda random, shape: random.beta(9, 1, shape),
    "exponential": lambda random, shape: random.exponential(0.9, shape),
}
"""Draws with mean 0.9."""


@pytest.mark.parametrize("kind", SKEWED)
@pytest.mark.parametrize(("texts", "least"), [(4, 0.85), (8, 0.92), (12, 0.92), (30, 0.92)])
def test_intervals_cover_the_mean(kind, texts, least):
    """A percentile interval covers it in 0.78 to 0.86 (8 texts) and 0.65 to 0.8 of cases (4 texts)."""
    samples = torch.from_numpy(SKEWED[kind](np.random.default_rng(0), (400, texts)))
    found = [bootstrap_interval(one, draws=400) for one in samples]
    covered = sum(one.low <= 0.9 <= one.high for one in found) / len(found)
    assert least <= covered <= 0.99


def test_intervals_of_many_texts_are_those_of_scipys_bootstrap():
    values = drawn(200).exp()
    found = bootstrap_interval(values, draws=5000)
    options = {"method": "BCa", "n_resamples": 5000, "rng": np.random.default_rng(0)}
    other = bootstrap((values.numpy(),), np.mean, **options).confidence_interval
    assert (found.low, found.high) == pytest.approx(tuple(other), abs=0.06)


def test_few_very_many_and_nearly_equal_texts_have_students_interval():
    """Resamples of very many texts would take gigabytes."""
    few, many, even = drawn(5), drawn(400_000), torch.ones(50).double()
    assert bootstrap_interval(even) == Interval(1.0, 1.0, 1.0)
    even[:2] = torch.tensor([0.5, 1 - 1e-9])
    for values in (few, many, even):
        found = bootstrap_interval(values)
        expected = student.interval(
            0.95, len(values) - 1, values.mean(), values.std() / len(values) ** 0.5
        )
        assert (found.low, found.high) == pytest.approx(expected)
    assert np.isnan(bootstrap_interval(few[:1]).low)


def test_the_p_value_counts_random_orders_that_are_as_good():
    random = torch.tensor([0.1, 0.2, 0.2, 0.4])
    found = permutation_p(torch.tensor([0.5, 0.4, 0.2, 0.0]), random)
    assert found.tolist() == pytest.approx([1 / 5, 2 / 5, 4 / 5, 1])
