"""Realisable dimension against a dense Jacobian by autograd; constructed alternatives put back into head and model."""

import random
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import causal, doubles, normals, random_qkt, seeded
from identilens.errors import InputError
from identilens.linalg import ProjectedValues
from identilens.measures.attention.realisable import coordinates
from identilens.measures.attention.realisable.alternative import realisable_alternative
from identilens.measures.attention.realisable.coordinates import Parameters, jacobian_rank
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
        return torch.softmax(logits(point).masked_fill(~seen, -torch.inf), -1) @ T

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
    weights = torch.softmax(
        logits if visible is None else logits.masked_fill(~visible, -torch.inf), -1
    )
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


ANGLES = (1.0, 0.37, 0.11)


def turn(vectors, turned):
    """Rotary positions: the first pairs of coordinates are turned, one angle for each frequency."""
    angles = torch.tensor(
        [angle for angle, count in zip(ANGLES, turned, strict=False) for _ in range(count)]
    )
    pairs = torch.view_as_complex(
        vectors[:, : 2 * len(angles)].contiguous().view(len(vectors), len(angles), 2)
    )
    phases = torch.polar(
        torch.ones(1).double(), torch.arange(len(vectors))[:, None] * angles.double()
    )
    return torch.cat(
        [torch.view_as_real(pairs * phases).flatten(1), vectors[:, 2 * len(angles) :]], 1
    )


def split(vector, *shapes):
    parts = vector.split([torch.Size(shape).numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def tied_heads(logits, count, values, visible, draw):
    """Heads that mix the same values, with random parameters."""
    T = ProjectedValues.of(values, torch.eye(values.shape[1]).double())
    kept = T.output_bases(len(visible), None if visible.all() else visible)
    parameters, heads = draw(count) / 2, len(logits(draw(count))) // len(visible)
    return SoftmaxMap(
        Parameters(logits, parameters),
        visible.repeat(heads, 1),
        kept * heads,
        slice(0, len(visible)),
    )


def moved_to(heads, point):
    return replace(heads, coordinates=replace(heads.coordinates, start=point))


def draws(seed):
    generator = seeded(seed)
    return lambda *shape: normals(generator, *shape)


def group(seed, n, d, heads, turned, plain, d_v, biases, masked):
    """Heads that share keys, with generic parameters and inputs; their logits and values."""
    draw, d_k = draws(seed), plain + 2 * sum(turned)
    inputs, ones = draw(n, d), torch.ones(n, 1).double()
    to_queries, to_keys = (torch.cat([inputs, ones], 1) if bias else inputs for bias in biases)
    sizes = (to_queries.shape[1], to_keys.shape[1])
    visible = causal(n) if masked else torch.ones(n, n, dtype=torch.bool)

    def logits(parameters):
        queries, keys = split(parameters, (heads, d_k, sizes[0]), (d_k, sizes[1]))
        keys = turn(to_keys @ keys.T, turned)
        return torch.cat([turn(to_queries @ one.T, turned) @ keys.T / d_k**0.5 for one in queries])

    values = inputs @ draw(d, d_v)
    count = d_k * (heads * sizes[0] + sizes[1])
    tied = tied_heads(logits, count, values, visible, draw)
    return tied, logits, values


def test_the_memory_of_an_alternative_is_that_of_its_jacobian(monkeypatch):
    tied, *_ = group(0, 6, 4, 2, (1,), 0, 2, (False, False), True)
    rows, columns = sum(basis.shape[1] for basis in tied.kept), len(tied.coordinates.start)
    assert rows != columns
    least = 24 * rows * max(rows, columns)
    options = {"distance": 0.001, "generator": seeded()}
    monkeypatch.setattr(coordinates, "MEMORY_LIMIT", least - 1)
    with pytest.raises(InputError, match="GiB"):
        realisable_alternative(tied, **options)
    monkeypatch.setattr(coordinates, "MEMORY_LIMIT", least)
    assert realisable_alternative(tied, **options).output_error < 1e-6


def shapes(count):
    """Shapes on both sides of every case: short and long texts, groups, partial rotary, equal frequencies, biases."""
    chosen = random.Random(0)
    for seed in range(count):
        turned, plain = (
            chosen.choice([(), (1,), (1, 1), (1, 1, 1), (2,), (2, 1)]),
            chosen.choice([0, 0, 1, 2, 3]),
        )
        plain = plain or (0 if turned else 2)
        d_k = plain + 2 * sum(turned)
        d = chosen.randint(d_k, d_k + 4)
        biases = chosen.choice([(False, False), (True, True), (True, False)])
        n = chosen.randint(3, d + d_k + 4)
        yield (
            seed,
            n,
            d,
            chosen.choice([1, 2, 3]),
            turned,
            plain,
            chosen.randint(1, 6),
            biases,
            chosen.random() < 0.5,
        )


@pytest.mark.parametrize("shape", list(shapes(24)), ids=str)
def test_ranks_of_heads_that_share_keys_are_those_of_the_dense_jacobian(shape):
    tied, logits, values = group(*shape)
    found = realisable_dimension(tied)
    ranks = map_ranks(logits, tied.coordinates.start, tied.visible, values)
    assert [found.jacobian_rank, found.weights_rank] == ranks
    assert found.dimension == ranks[1] - ranks[0]
    assert found.parameters == len(tied.coordinates.start)
    assert found.regular


def test_parameters_of_less_than_generic_rank_are_not_regular():
    """Maps W_Q and W_K without their first coordinate: its products move no weight to first order."""
    tied, *_ = group(0, 9, 6, 1, (), 3, 2, (False, False), False)
    generic = realisable_dimension(tied)
    assert generic.regular
    cut = tied.coordinates.start.clone().view(2, 3, 6)
    cut[:, 0] = 0
    found = realisable_dimension(moved_to(tied, cut.flatten()))
    assert not found.regular
    assert found.weights_rank < generic.weights_rank
    assert not realisable_dimension(
        moved_to(tied, torch.zeros_like(tied.coordinates.start))
    ).regular


@pytest.mark.parametrize(
    ("heads", "turned", "plain", "masked"),
    [(1, (1, 1), 0, False), (2, (1,), 2, False), (2, (1, 1), 0, True)],
)
def test_alternatives_keep_the_output_of_every_head_of_the_group(heads, turned, plain, masked):
    tied, *_ = group(1, 12, 12, heads, turned, plain, 3, (False, False), masked)
    assert realisable_dimension(tied).dimension > 0
    found = realisable_alternative(tied, distance=0.03, generator=seeded())
    assert found.reached
    assert found.distance == pytest.approx(0.0303, abs=4e-4)
    assert found.output_error < 1e-13
    assert torch.equal(found.weights, tied.weights(found.point))
    assert (found.weights >= 0).all()
    original = tied.weights(tied.coordinates.start)
    distances = total_variation(original, found.weights)
    assert distances[tied.rows].mean() == pytest.approx(found.distance)
    if heads > 1:
        assert distances[len(tied.visible) // 2 :].max() > 1e-3, "the keys are those of both heads"
    for row, (before, after) in enumerate(zip(original, found.weights, strict=True)):
        assert_close(after @ tied.kept[row], before @ tied.kept[row], atol=1e-13, rtol=0)


def test_ranks_of_nothing_and_of_nearly_nothing():
    assert jacobian_rank(torch.zeros(0, 5)) == jacobian_rank(torch.zeros(2, 5)) == 0
    for least, rank in ((3e-12, 2), (5e-12, 3)):
        diagonal = torch.diag(doubles([4.0, 1.0, least]))
        assert jacobian_rank(diagonal) == rank
