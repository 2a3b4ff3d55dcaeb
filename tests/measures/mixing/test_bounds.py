"""Bounds of rollouts beside brute force over the vertices of every row's alternatives."""

from itertools import combinations, product

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import seeded, seen_of, softmax_of
from identilens.linalg import ProjectedValues
from identilens.measures.mixing import HeadRows, rollout_bounds
from identilens.measures.mixing.rollout import attention_rollout, mean_over_heads

N, D_V = 5, 2


def heads(seed, layers=2, number=2, n=N, d_v=D_V, visible=None):
    """Heads with random values and weights, of every layer."""
    generator = seeded(seed)
    found = []
    for _ in range(layers):
        layer = []
        for _ in range(number):
            logits = 2 * torch.randn(n, n, generator=generator).double()
            values = torch.randn(n, d_v, generator=generator).double()
            T = ProjectedValues.of(values, torch.eye(d_v).double())
            layer.append(HeadRows(softmax_of(logits, visible), T, visible))
        found.append(layer)
    return found


def rolled(layers):
    """The rollout of maps by layer and head."""
    return attention_rollout(torch.stack([mean_over_heads(torch.stack(one)) for one in layers]))[-1]


def vertices(head, query):
    """All vertices of the alternatives of a row, by solving for every choice of its support."""
    n = len(head.weights)
    seen = seen_of(head.visible, head.weights)[query]
    keys = seen.nonzero()[:, 0].tolist()
    equations = torch.cat([head.projected.values, torch.ones(n, 1).double()], 1).mT
    right = equations @ head.weights[query]
    size = int(torch.linalg.matrix_rank(equations[:, keys]))
    found = []
    for support in combinations(keys, size):
        part = equations[:, support]
        if torch.linalg.matrix_rank(part) < size:
            continue
        solved = torch.linalg.lstsq(part, right[:, None], driver="gelsd").solution[:, 0]
        if solved.min() >= -1e-12 and (part @ solved - right).abs().max() < 1e-10:
            vertex = torch.zeros(n).double()
            vertex[list(support)] = solved
            found.append(vertex)
    return found


def by_brute_force(layers, query, cost):
    """The least value at a query over all vertices of two layers, however those of the rows are combined.

    For every choice in the upper layer the value is a sum over the rows of the lower one, each with choices of its own.
    """
    lower, upper = layers
    below = [
        torch.stack(
            [
                0.5 * cost[row] + 0.5 * torch.stack(one).mean(0) @ cost
                for one in product(*(vertices(head, row) for head in lower))
            ]
        )
        for row in range(N)
    ]
    found = []
    for one in product(*(vertices(head, query) for head in upper)):
        step = 0.5 * torch.stack(one).mean(0)
        step[query] += 0.5
        found.append(sum(float((step[row] * below[row]).min()) for row in range(N)))
    return min(found)


CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()
PADDED = torch.ones(N, N, dtype=torch.bool)
PADDED[:, -1] = False


@pytest.mark.parametrize("visible", [None, CAUSAL, PADDED])
@pytest.mark.parametrize("seed", [0, 1])
def test_ends_are_those_of_brute_force(visible, seed):
    layers = heads(seed, visible=visible)
    functionals = torch.eye(N).double()
    functionals = torch.cat([functionals, functionals[:1] - functionals[1:2]])
    found = rollout_bounds(layers, functionals)
    for number, cost in enumerate(functionals):
        for query in range(N):
            lo, hi = by_brute_force(layers, query, cost), -by_brute_force(layers, query, -cost)
            assert found.lo[number, query] == pytest.approx(lo, abs=1e-9)
            assert found.hi[number, query] == pytest.approx(hi, abs=1e-9)
    assert found.gap < 1e-9
    assert (found.hi - found.lo).max() > 0.01


@pytest.mark.parametrize("visible", [None, torch.ones(9, 9, dtype=torch.bool).tril()])
def test_value_and_witnesses_are_rollouts_and_alternatives_are_inside(visible):
    layers = heads(5, layers=3, number=2, n=9, d_v=3, visible=visible)
    found = rollout_bounds(layers, torch.eye(9).double()[:4], witnesses=True)
    plain = rolled([[head.weights for head in layer] for layer in layers])
    assert_close(found.value, plain[:, :4].mT)
    ends = []
    for maps, end in ((found.least_maps, found.lo), (found.greatest_maps, found.hi)):
        assert maps is not None
        for functional in range(4):
            chosen = [list(layer[functional]) for layer in maps]
            for layer, new in zip(layers, chosen, strict=True):
                for head, map_ in zip(layer, new, strict=True):
                    assert_close(
                        map_ @ head.projected.values,
                        head.weights @ head.projected.values,
                        atol=1e-9,
                        rtol=0,
                    )
                    assert map_.min() >= 0
                    assert head.visible is None or not map_.masked_fill(head.visible, 0).any()
            assert_close(rolled(chosen)[:, functional], end[functional], atol=1e-9, rtol=0)
            ends.append(chosen)
    generator = seeded()
    for _ in range(20):
        # Mixtures of what is allowed are allowed: each row of each head by its own share.
        one, other = (ends[int(torch.randint(len(ends), (), generator=generator))] for _ in "ab")
        mixed = []
        for first, second in zip(one, other, strict=True):
            share = [torch.rand(9, 1, generator=generator).double() for _ in first]
            mixed.append(
                [s * a + (1 - s) * b for s, a, b in zip(share, first, second, strict=True)]
            )
        value = rolled(mixed)[:, :4].mT
        assert (value >= found.lo - 1e-12).all()
        assert (value <= found.hi + 1e-12).all()


def test_some_queries_have_the_bounds_of_all():
    layers = heads(2, visible=CAUSAL)
    every, some = (
        rollout_bounds(layers, torch.eye(N).double(), queries=queries) for queries in (None, [3, 1])
    )
    assert_close(some.lo, every.lo[:, [3, 1]], atol=1e-9, rtol=0)
    assert_close(some.hi, every.hi[:, [3, 1]], atol=1e-9, rtol=0)


def test_bounds_widen_with_the_tolerance():
    layers = heads(4)
    ends = [
        rollout_bounds(layers, torch.eye(N).double(), tolerance=size) for size in (0.0, 1e-9, 0.1)
    ]
    assert_close(ends[1].lo, ends[0].lo, atol=1e-6, rtol=0)
    assert (ends[2].lo <= ends[0].lo + 1e-9).all()
    assert (ends[2].hi >= ends[0].hi - 1e-9).all()
    assert (ends[2].hi - ends[2].lo).mean() > 1.1 * (ends[0].hi - ends[0].lo).mean()
