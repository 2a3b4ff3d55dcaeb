"""The gauge of tied heads in closed form against the kernels of Jacobians, and alternatives of tied heads."""

import random
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from helpers.gauge import KeyGroup
from helpers.heads import causal, doubles, normals, seeded
from identilens.errors import InputError
from identilens.linalg import ProjectedValues
from identilens.measures.attention.realisable import coordinates
from identilens.measures.attention.realisable.alternative import realisable_alternative
from identilens.measures.attention.realisable.coordinates import Parameters, jacobian_rank
from identilens.measures.attention.realisable.softmax_map import SoftmaxMap, realisable_dimension
from identilens.measures.attention.simplex import total_variation

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
    """A key group with generic parameters and inputs, and its sizes."""
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
    return tied, KeyGroup(
        counts=visible.sum(-1).tolist(), ranks=[basis.shape[1] for basis in tied.kept[: len(visible)]], heads=heads,
        plain=plain, turned=turned, query_inputs=sizes[0], key_inputs=sizes[1], key_bias=biases[1],
    )  # fmt: skip


def test_the_memory_of_an_alternative_is_that_of_its_jacobian(monkeypatch):
    tied, _ = group(0, 6, 4, 2, (1,), 0, 2, (False, False), True)
    rows, columns = sum(basis.shape[1] for basis in tied.kept), len(tied.coordinates.start)
    assert rows != columns
    least = 24 * rows * max(rows, columns)
    options = {"distance": 0.001, "generator": seeded()}
    monkeypatch.setattr(coordinates, "MEMORY_LIMIT", least - 1)
    with pytest.raises(InputError, match="GiB"):
        realisable_alternative(tied, **options)
    monkeypatch.setattr(coordinates, "MEMORY_LIMIT", least)
    assert realisable_alternative(tied, **options).output_error < 1e-6


def lost(found):
    """Dimensions of the changes of the parameters that change no weight, and of those that change no output."""
    return found.parameters - found.weights_rank, found.parameters - found.jacobian_rank


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


@pytest.mark.parametrize("shape", list(shapes(36)), ids=str)
def test_gauge_and_kernel_of_a_group_are_those_of_its_jacobians(shape):
    tied, sizes = group(*shape)
    found = realisable_dimension(tied)
    assert (*lost(found), found.parameters) == (sizes.gauge, sizes.kernel, sizes.parameters)
    assert found.dimension == sizes.dimension
    assert found.regular


def test_parameters_of_less_than_generic_rank_are_not_regular():
    """Maps W_Q and W_K without their first coordinate: its products move no weight to first order."""
    tied, sizes = group(0, 9, 6, 1, (), 3, 2, (False, False), False)
    assert realisable_dimension(tied).regular
    cut = tied.coordinates.start.clone().view(2, 3, 6)
    cut[:, 0] = 0
    found = realisable_dimension(moved_to(tied, cut.flatten()))
    assert not found.regular
    assert found.weights_rank < sizes.weights_rank
    assert not realisable_dimension(
        moved_to(tied, torch.zeros_like(tied.coordinates.start))
    ).regular


@pytest.mark.parametrize(
    ("heads", "turned", "plain", "masked"),
    [(1, (1, 1), 0, False), (2, (1,), 2, False), (2, (1, 1), 0, True)],
)
def test_alternatives_keep_the_output_of_every_head_of_the_group(heads, turned, plain, masked):
    tied, sizes = group(1, 12, 12, heads, turned, plain, 3, (False, False), masked)
    assert sizes.dimension > 0
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
