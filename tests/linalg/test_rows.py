"""All heads' rows projected at once equal one decomposition a row, on random layers of every kind."""

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import masks, normals, seeded, softmax_of
from helpers.reference import effective_svd
from identilens.linalg import OutputFactor, ProjectedValues, memory

KINDS = ("random", "low rank", "nearly low rank", "repeated", "scales over 1e4")


def random_layer(seed):
    """Values of groups, projections of their heads, and weights peaked, near uniform or one-hot."""
    generator = seeded(seed)

    def size(least, most):
        return int(torch.randint(least, most, (1,), generator=generator))

    def draw(*shape):
        return normals(generator, *shape)

    groups, share, d_v = size(1, 3), size(1, 3), size(1, 130 if seed % 19 == 0 else 34)
    n = max((d_v + size(-2, 3), size(1, 140))[seed % 2], 1)
    inner, kind = max(d_v // 2, 1), KINDS[seed // 5 % 5]
    values = draw(groups, 1, n, d_v)
    if "low rank" in kind:
        values = 1e-3 * (kind == "nearly low rank") * values + draw(groups, 1, n, inner) @ draw(
            inner, d_v
        )
    elif kind == "repeated":
        values = values[:, :, torch.randint(0, max(n // 2, 1), (n,), generator=generator)]
    elif kind == "scales over 1e4":
        values = values * 10 ** (4 * torch.rand(groups, 1, n, 1, generator=generator).double() - 2)
    projection = draw(groups, share, d_v, d_v + size(0, 30))
    return values, projection, (2.0, 1e-4, 300.0)[seed % 3] * draw(groups * share, n, n)


def patterns(n):
    """Masks as a caller gives them, and as what each row sees."""
    everything = torch.ones(n, n, dtype=torch.bool)
    return {name: (mask, everything if mask is None else mask) for name, mask in masks(n).items()}


@pytest.mark.parametrize("start", range(0, 1000, 100))
def test_a_thousand_random_layers(start):
    for seed in range(start, start + 100):
        values, projection, logits = random_layer(seed)
        T = ProjectedValues(values, projection.shape[-1], OutputFactor.of(projection))
        n = values.shape[2]
        # Local rows see about as many keys as values have dimensions: rounding grows with their condition.
        name = ("full", "causal", "window", "prefix", "random")[seed % 5]
        visible, seen = patterns(n)[name]
        weights = softmax_of(logits, seen)
        found = T.projector(n, visible).effective(weights)
        products = (values @ projection).flatten(0, 1)
        for rows, product, effective in zip(weights, products, found, strict=True):
            assert_close(effective, effective_svd(rows, product, seen), atol=1e-9, rtol=0)


@pytest.mark.parametrize("held", [1, 2**25])
@pytest.mark.parametrize("name", list(masks(1)))
@pytest.mark.parametrize("seed", [5, 11, 13, 16, 17, 23])
def test_what_is_left_of_the_ones_is_that_of_the_maps(seed, name, held, monkeypatch):
    monkeypatch.setattr(memory, "PROCESSOR_BYTES", held)
    values, projection, logits = random_layer(seed)
    T = ProjectedValues(values, projection.shape[-1], OutputFactor.of(projection))
    n = values.shape[2]
    visible, seen = patterns(n)[name]
    weights = softmax_of(logits, seen)
    projector = T.projector(n, visible)
    effective = projector.effective(weights)
    ones = seen.double() / seen.sum(-1, keepdim=True)
    effective_ones = projector.effective(ones.expand_as(weights))
    for rows in projector.steps(n):
        found, outside = projector.project(rows, weights[:, rows])
        torch.testing.assert_close(found, effective[:, rows], atol=1e-12, rtol=0)
        expected = ((ones - effective_ones) * seen.sum(-1, keepdim=True))[:, rows].square().sum(-1)
        torch.testing.assert_close(outside, expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize("name", ["causal", "window", "local", "prefix", "random"])
@pytest.mark.parametrize("seed", [3, 8, 13, 18, 23, 11, 12, 14])
def test_ranks_of_rows_are_those_of_a_decomposition(seed, name):
    values, projection, _ = random_layer(seed)
    T = ProjectedValues(values, projection.shape[-1], OutputFactor.of(projection))
    n = values.shape[2]
    visible, seen = patterns(n)[name]
    projector = T.projector(n, visible)
    expected = [
        [int(torch.linalg.matrix_rank(head[keys], rtol=T.tolerance_of(int(keys.sum())))) for keys in seen]
        for head in projector.compact
    ]  # fmt: skip
    assert projector.row_ranks().tolist() == expected
