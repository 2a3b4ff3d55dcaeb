"""The gauge of tied heads in closed form against the kernels of Jacobians, and alternatives of tied heads."""

import random
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from helpers.gauge import KeyGroup, latent_gauge, normed_gauge
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


def normed(vectors):
    return vectors / vectors.square().mean(-1, keepdim=True).sqrt()


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


def group(seed, n, d, heads, turned, plain, d_v, biases, masked, n_query=None, table=0):
    """A key group with generic parameters and inputs, and its sizes."""
    draw, d_k = draws(seed), plain + 2 * sum(turned)
    inputs, ones = draw(n, d), torch.ones(n, 1).double()
    to_queries, to_keys = (torch.cat([inputs, ones], 1) if bias else inputs for bias in biases)
    to_queries = to_queries[: n_query or n]
    sizes = (to_queries.shape[1], to_keys.shape[1])
    visible = causal(n) if masked else torch.ones(n_query or n, n, dtype=torch.bool)
    apart = (torch.arange(n) - torch.arange(len(visible))[:, None]).clamp(-(table // 2), table // 2)
    used, entry = (apart * visible).unique(return_inverse=True)
    entries = len(used) if table else 0

    def logits(parameters):
        queries, keys, biases = split(
            parameters, (heads, d_k, sizes[0]), (d_k, sizes[1]), (heads, entries)
        )
        keys = turn(to_keys @ keys.T, turned)
        maps = [turn(to_queries @ one.T, turned) @ keys.T / d_k**0.5 for one in queries]
        return torch.cat(
            [one + bias[entry] if table else one for one, bias in zip(maps, biases, strict=True)]
        )

    values = inputs @ draw(d, d_v)
    count = d_k * (heads * sizes[0] + sizes[1]) + heads * entries
    tied = tied_heads(logits, count, values, visible, draw)
    return tied, KeyGroup(
        counts=visible.sum(-1).tolist(), ranks=[basis.shape[1] for basis in tied.kept[: len(visible)]], heads=heads,
        plain=plain, turned=turned, query_inputs=sizes[0], key_inputs=sizes[1], key_bias=biases[1], table=entries,
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
    ("seed", "n", "plain", "masked"), [(0, 8, 3, False), (1, 14, 2, True), (2, 9, 2, False)]
)
def test_gauge_and_kernel_with_a_table_of_position_biases(seed, n, plain, masked):
    tied, sizes = group(seed, n, 6, 1, (), plain, 2, (False, False), masked, table=5)
    found = realisable_dimension(tied)
    assert sizes.table > 2
    assert lost(found) == (sizes.gauge, sizes.kernel)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("heads", "plain", "turned", "moves"),
    [
        (1, 3, (1,), "own"), (1, 2, (2,), "own"), (2, 2, (1,), "shared"), (3, 1, (1, 1), "shared"),
        (2, 2, (1,), "all"),
    ],
)  # fmt: skip
def test_gauge_and_kernel_of_latent_keys(heads, plain, turned, moves, masked):
    draw, pairs = draws(heads + plain), 2 * sum(turned)
    d_k, d, latent, d_v, n = plain + pairs, plain + pairs + 3, plain + pairs, 3, 26
    inputs, down, shared, keys_latent = (
        draw(n, d), draw(latent, d), draw(pairs, d), normed(draw(n, plain + 2)),
    )  # fmt: skip
    shapes = [(heads, d_k, latent), (heads, plain, plain + 2)]
    shapes += {"own": [], "shared": [(pairs, d)], "all": [(pairs, d), (latent, d)]}[moves]

    def logits(parameters):
        to_queries, to_keys, *more = split(parameters, *shapes)
        rotary, first = (*more, *(shared, down)[len(more) :])
        turned_keys, maps = turn(inputs @ rotary.T, turned), []
        for query, key in zip(to_queries, to_keys, strict=True):
            made = normed(inputs @ first.T) @ query.T
            maps.append(
                turn(made[:, :pairs], turned) @ turned_keys.T
                + made[:, pairs:] @ (keys_latent @ key.T).T
            )
        return torch.cat(maps)

    visible = causal(n) if masked else torch.ones(n, n, dtype=torch.bool)
    count = sum(torch.Size(shape).numel() for shape in shapes)
    tied = tied_heads(logits, count, keys_latent @ draw(plain + 2, d_v), visible, draw)
    found, conditions = realisable_dimension(tied), int(tied.ranks.sum())
    seeing = int((visible.sum(-1) > 1).sum())
    expected = latent_gauge(
        heads,
        plain,
        turned,
        shared=moves != "own",
        queries=seeing,
        rank=latent if moves == "all" else None,
    )
    assert lost(found) == (expected, count - min(count - expected, conditions))


@pytest.mark.parametrize("unit_gain", [False, True])
@pytest.mark.parametrize(("heads", "plain", "turned"), [(1, 3, (1, 1)), (2, 2, (1,)), (3, 0, (2,))])
def test_gauge_of_normed_queries_and_keys(heads, plain, turned, unit_gain):
    draw, d_k = draws(5), plain + 2 * sum(turned)
    d = d_k + 2
    n = d + 2 * d_k + 4
    inputs, gains = (draw(n, d), torch.ones(2, d_k).double() if unit_gain else draw(2, d_k))

    def logits(parameters):
        queries, keys = split(parameters, (heads, d_k, d), (d_k, d))
        keys = turn(normed(inputs @ keys.T) * gains[1], turned)
        return torch.cat(
            [turn(normed(inputs @ one.T) * gains[0], turned) @ keys.T for one in queries]
        )

    tied = tied_heads(
        logits, (heads + 1) * d_k * d, inputs @ draw(d, 2), torch.ones(n, n, dtype=torch.bool), draw
    )
    expected = normed_gauge(heads, plain, turned, unit_gain=unit_gain)
    assert lost(realisable_dimension(tied))[0] == expected


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
