"""Realisable dimension against a dense Jacobian by autograd; constructed alternatives put back into head and model."""

from itertools import product

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import causal, doubles, normals, random_qkt, seeded, softmax_of
from identilens.errors import InputError
from identilens.linalg import ProjectedValues
from identilens.measures.attention.realisable import coordinates
from identilens.measures.attention.realisable.alternative import realisable_alternative
from identilens.measures.attention.realisable.coordinates import QueriesAndKeys, jacobian_rank
from identilens.measures.attention.realisable.softmax_map import (
    SoftmaxMap,
    realisable_dimension,
    softmax_map,
)
from identilens.measures.attention.simplex import total_variation


def long_text(n, d_k, rank):
    """The generic dimension for a bidirectional text of more than d_k tokens."""
    return max(0, n * (2 * d_k - rank) - d_k * d_k - d_k)


def halves(point, queries, keys):
    """The queries and the transposed keys of a point."""
    new_queries, new_keys = point.split([queries.numel(), keys.numel()])
    return new_queries.view_as(queries), new_keys.view_as(keys).T


def map_ranks(logits, point, seen, T):
    """Ranks of the whole Jacobians of output and of logits up to row constants, by autograd and SVD."""

    def output(point):
        return softmax_of(logits(point), seen) @ T

    def centred(point):
        own = logits(point) * seen
        return (own - own.sum(1, keepdim=True) / seen.sum(1, keepdim=True)) * seen

    ranks = []
    for function in (output, centred):
        jacobian = torch.autograd.functional.jacobian(function, point)
        sigma = torch.linalg.svdvals(jacobian.flatten(0, 1))
        ranks.append(int((sigma > 1e-11 * sigma[0]).sum()))
    return ranks


def dense_ranks(queries, keys, T, visible=None, scaling=None, bias=0.0):
    """The same of one head, whose queries and keys are the point."""
    seen = torch.ones(len(queries), len(keys), dtype=torch.bool) if visible is None else visible
    scaling = keys.shape[1] ** -0.5 if scaling is None else scaling

    def logits(point):
        return scaling * torch.mm(*halves(point, queries, keys)) + bias

    return map_ranks(logits, torch.cat([queries.flatten(), keys.flatten()]), seen, T)


SIZES = [
    *((n, n, *sizes, False) for n in (10, 16) for sizes in product((1, 2, 3, 4, 6, 9), (3, 6, 8))),
    *((n, n, *sizes, True) for n in (7, 12) for sizes in product((1, 3, 5, 12), (2, 5, 14))),
    *((5, 14, 3, 4, False), (14, 9, 4, 5, False), (4, 12, 6, 8, False), (12, 12, 15, 5, False)),
]


@pytest.mark.parametrize(("n_query", "n_key", "d_k", "d_v", "masked"), SIZES)
def test_dimension_equals_formula_and_dense_jacobian(n_query, n_key, d_k, d_v, masked):
    queries, keys, T = random_qkt(n_key + 31 * d_k + 7 * d_v, n_key, d_k, d_v, n_query)
    visible = causal(n_key) if masked else None
    found = realisable_dimension(softmax_map(queries, keys, T, visible=visible))
    ranks = dense_ranks(queries, keys, T, visible)
    assert [found.jacobian_rank, found.weights_rank] == ranks
    assert found.dimension == found.formula == ranks[1] - ranks[0]
    if n_query == n_key > d_k and not masked:
        assert found.dimension == long_text(n_key, d_k, d_v)


def test_window_has_no_formula_but_a_count():
    queries, keys, T = random_qkt(2, 12, 3, 2)
    places = torch.arange(12)
    window = (places[:, None] - places[None, :]).abs() <= 3
    found = realisable_dimension(softmax_map(queries, keys, T, visible=window))
    assert found.formula is None
    assert [found.jacobian_rank, found.weights_rank] == dense_ranks(queries, keys, T, window)
    assert found.dimension > 0


@pytest.mark.parametrize("deficient", ["queries", "keys", "both", "equal keys"])
def test_rank_deficient_heads_are_counted_and_marked(deficient):
    queries, keys, T = random_qkt(4, 14, 5, 6)
    cut = torch.diag(doubles([1.0, 1, 1, 0, 0]))
    mix = torch.linalg.qr(normals(seeded(), 5, 5)).Q
    if deficient in ("queries", "both"):
        queries = queries @ cut @ mix
    if deficient in ("keys", "both"):
        keys = keys @ cut @ mix.T
    if deficient == "equal keys":
        keys = keys[:1].expand(14, 5).clone()
    found = realisable_dimension(softmax_map(queries, keys, T))
    assert not found.regular
    assert [found.jacobian_rank, found.weights_rank] == dense_ranks(queries, keys, T)
    assert found.parameters - found.weights_rank > 5 * 5 + 5


def test_scaling_and_bias_do_not_change_the_dimension_but_are_used():
    queries, keys, T = random_qkt(4, 12, 5, 6)
    bias = normals(seeded(), 12, 12)
    found = realisable_dimension(softmax_map(queries, keys, T, scaling=0.3, bias=bias))
    assert [found.jacobian_rank, found.weights_rank] == dense_ranks(
        queries, keys, T, None, 0.3, bias
    )
    walked = realisable_alternative(
        softmax_map(queries, keys, T, 0.3, bias=bias), generator=seeded()
    )
    assert torch.allclose(
        walked.weights,
        torch.softmax(0.3 * torch.mm(*halves(walked.point, queries, keys)) + bias, -1),
    )
    assert walked.reached


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("n", "d_k", "d_v"), [(24, 8, 8), (24, 5, 8), (12, 3, 4), (30, 10, 12), (16, 15, 8)]
)
def test_alternatives_of_random_heads(n, d_k, d_v, masked):
    queries, keys, T = random_qkt(n + d_k, n, d_k, d_v)
    visible = causal(n) if masked else None
    assert realisable_dimension(softmax_map(queries, keys, T, visible=visible)).dimension > 0
    found = realisable_alternative(
        softmax_map(queries, keys, T, visible=visible), distance=0.06, generator=seeded()
    )
    logits = torch.mm(*halves(found.point, queries, keys)) / d_k**0.5
    weights = softmax_of(logits, visible)
    assert torch.allclose(weights, found.weights, atol=1e-14)
    head = softmax_map(queries, keys, T, visible=visible)
    original = head.weights(head.coordinates.start)
    assert found.reached
    assert 0.06 <= found.distance <= 0.0625
    assert float((weights - original).abs().sum(-1).mean() / 2) == pytest.approx(found.distance)
    lost = torch.linalg.matrix_norm((weights - original) @ T) / torch.linalg.matrix_norm(
        original @ T
    )
    assert lost < 1e-9
    if masked:
        assert (
            total_variation(original, weights)[: d_v + 1].max() < 1e-9
        )  # these rows have no alternative on the simplex


def test_identifiable_heads_have_no_way_to_go():
    queries, keys, T = random_qkt(0, 24, 4, 8)
    found = realisable_alternative(softmax_map(queries, keys, T), generator=seeded())
    assert not found.reached
    assert found.distance < 1e-8


@pytest.mark.parametrize("unit", [2.0**-24, 2.0**24])
def test_units_of_queries_and_keys_do_not_matter(unit):
    queries, keys, T = random_qkt(3, 16, 6, 6)
    same = realisable_alternative(softmax_map(queries, keys, T), distance=0.05, generator=seeded())
    scaled = realisable_alternative(
        softmax_map(queries * unit, keys * unit, T, 6**-0.5 / unit**2),
        distance=0.05,
        generator=seeded(),
    )
    assert_close(scaled.weights, same.weights, atol=1e-7, rtol=0)
    assert scaled.steps == same.steps


def group(seed, n, heads, d_k, d_v, masked):
    """Heads that share keys and mix the same values, as a map of all their queries and these keys; the values."""
    generator = seeded(seed)
    queries, keys = normals(generator, heads * n, d_k), normals(generator, n, d_k)
    values = normals(generator, n, d_v)
    visible = causal(n) if masked else torch.ones(n, n, dtype=torch.bool)
    kept = ProjectedValues.of(values, torch.eye(d_v).double()).output_bases(n, visible)
    start = torch.cat([queries, keys]).flatten()
    coordinates = QueriesAndKeys(start, heads * n, d_k, d_k**-0.5)
    tied = SoftmaxMap(coordinates, visible.repeat(heads, 1), kept * heads, slice(n, 2 * n))
    return tied, values


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("n", "heads", "d_k", "d_v"), [(9, 2, 3, 4), (12, 3, 4, 3), (7, 2, 6, 2), (10, 3, 2, 6)]
)
def test_heads_that_share_keys_count_and_move_together(n, heads, d_k, d_v, masked):
    tied, values = group(n, n, heads, d_k, d_v, masked)
    found = realisable_dimension(tied)
    ranks = map_ranks(tied.coordinates.logits, tied.coordinates.start, tied.visible, values)
    assert [found.jacobian_rank, found.weights_rank] == ranks
    assert found.dimension == found.formula == ranks[1] - ranks[0]
    assert found.regular
    walked = realisable_alternative(tied, distance=0.02, generator=seeded())
    original = tied.weights(tied.coordinates.start)
    assert torch.equal(walked.weights, tied.weights(walked.point))
    if found.dimension:
        assert walked.reached
        distances = total_variation(original, walked.weights)
        assert distances[tied.rows].mean() == pytest.approx(walked.distance)
        assert distances[: tied.rows.start].max() > 1e-4, "the keys are those of all heads"
    for row, (before, after) in enumerate(zip(original, walked.weights, strict=True)):
        assert_close(after @ tied.kept[row], before @ tied.kept[row], atol=1e-12, rtol=0)


def test_the_memory_of_an_alternative_is_that_of_its_conditions(monkeypatch):
    tied, _ = group(0, 6, 2, 3, 2, True)
    least = 24 * sum(basis.shape[1] for basis in tied.kept) ** 2
    options = {"distance": 0.001, "generator": seeded()}
    monkeypatch.setattr(coordinates, "MEMORY_LIMIT", least - 1)
    with pytest.raises(InputError, match="GiB"):
        realisable_alternative(tied, **options)
    monkeypatch.setattr(coordinates, "MEMORY_LIMIT", least)
    assert realisable_alternative(tied, **options).output_error < 1e-6


def test_ranks_of_nothing_and_of_nearly_nothing():
    assert jacobian_rank(torch.zeros(0, 5)) == jacobian_rank(torch.zeros(2, 5)) == 0
    for least, rank in ((3e-12, 2), (5e-12, 3)):
        diagonal = torch.diag(doubles([4.0, 1.0, least]))
        assert jacobian_rank(diagonal) == rank
