"""The scalars from blocks of rows equal those of the whole map, for tensors that come from anywhere."""

import pytest
import torch

from helpers.heads import masks, normals, seeded, seen_of, softmax_of
from helpers.layers import TensorLayer, measured
from helpers.reference import effective_svd
from identilens.errors import NumericalError
from identilens.linalg import ProjectedValues
from identilens.measures.attention.layer import measure_layer


def summarise(values, projection, weights, visible, block):
    return measured(ProjectedValues.of(values, projection), weights, visible, block)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", [7, 256])
def test_summary_of_blocks_equals_the_whole_map(causal, block):
    generator = seeded(1)
    queries, keys, values = normals(generator, 3, 2, 40, 8)
    projection = normals(generator, 2, 8, 24)
    logits = queries @ keys.mT * 0.5
    visible = torch.ones(40, 40).tril().bool() if causal else None
    whole = softmax_of(logits, visible)
    found = summarise(values, projection, whole, visible, block)
    for head, weights in enumerate(whole):
        effective = effective_svd(weights, values[head] @ projection[head], visible)
        seen = seen_of(visible, weights)
        null_share = (weights - effective).square().sum() / weights.square().sum()
        assert float(found.null_share[head]) == pytest.approx(float(null_share), abs=1e-9)
        pearson = torch.corrcoef(torch.stack([weights[seen], effective[seen]]))[0, 1]
        assert float(found.pearson[head]) == pytest.approx(float(pearson), abs=1e-9)
        assert float(found.received[0, head]) == pytest.approx(40)
        assert float(found.received[1, head]) == pytest.approx(float(effective.sum()), abs=1e-8)
    assert found.reconstruction_error.max() < 1e-9
    assert found.rank.tolist() == [8, 8]
    assert found.simplex_nullity.tolist() == [31, 31]
    whole[0] = torch.nan
    with pytest.raises(NumericalError):
        summarise(values, projection, whole, visible, block)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "block"), [(100, 7), (100, 256), (48, 5), (5, 2), (1, 1)])
def test_means_over_blocks_of_queries_and_keys(causal, n, block):
    generator = seeded(n)
    visible = torch.ones(n, n).tril().bool() if causal else None
    weights = softmax_of(normals(generator, 2, n, n), visible).float()
    projected = ProjectedValues.of(
        torch.randn(2, n, 4, generator=generator), torch.randn(2, 4, 8, generator=generator)
    )
    layer = TensorLayer(projected, weights, visible, block)
    assert not measure_layer(layer).kept
    layer.keeps_means = True
    means = measure_layer(layer).kept["means"]
    size = min(48, n)
    assert means.shape == (2, size, size)
    where = [token * size // n for token in range(n)]
    for row in range(size):
        queries = [at for at, block in enumerate(where) if block == row]
        for column in range(size):
            keys = [at for at, block in enumerate(where) if block == column]
            expected = weights[:, queries][..., keys].sum(-1).mean(-1)
            assert means[:, row, column].tolist() == pytest.approx(expected.tolist(), abs=1e-6)


@pytest.mark.parametrize("mask", ["full", "causal", "window"])
@pytest.mark.parametrize("n", [3, 8, 9, 40, 150])
@pytest.mark.parametrize(("spread", "accuracy"), [(1.0, 1e-6), (3e-4, 1e-4), (1e-5, 1e-4)])
def test_correlation_of_near_uniform_float32_weights(mask, n, spread, accuracy):
    """Taken over the weights as they are: a spread far below float32's rounding of their squares is no matter."""
    generator = seeded(n)
    values = normals(generator, 1, n, 8) + 2
    projection = normals(generator, 1, 8, 24)
    visible = masks(n)[mask]
    logits = spread * normals(generator, 1, n, n)
    weights = softmax_of(logits, visible).float()
    seen = seen_of(visible, weights[0])
    found = summarise(values.float(), projection.float(), weights, visible, 16)
    effective = effective_svd(
        weights[0].double(), values[0].float().double() @ projection[0].float().double(), seen
    )
    expected = torch.corrcoef(torch.stack([weights[0].double()[seen], effective[seen]]))[0, 1]
    assert float(found.pearson) == pytest.approx(float(expected), abs=accuracy)


@pytest.mark.parametrize("mask", ["full", "causal", "window", "prefix"])
@pytest.mark.parametrize("n", [1, 8, 9, 10, 60])
def test_simplex_null_share_equals_a_projection_of_each_row(mask, n):
    generator = seeded(n)
    values, logits = (normals(generator, 2, n, m) for m in (8, n))
    projection = normals(generator, 2, 8, 24)
    visible = masks(n)[mask]
    weights = softmax_of(logits, visible)
    seen = seen_of(visible, weights[0])
    found = summarise(values, projection, weights, visible, 16)
    for head in range(2):
        free = 0.0
        for row, keys in zip(weights[head], seen, strict=True):
            columns = torch.cat(
                [(values[head] @ projection[head])[keys], torch.ones(int(keys.sum()), 1)], 1
            )
            left, sigma, _ = torch.linalg.svd(columns, full_matrices=True)
            free += float(
                (row[keys] @ left[:, int((sigma > 1e-5 * sigma[0]).sum()) :]).square().sum()
            )
        expected = free / float(weights[head].square().sum())
        assert float(found.simplex_null_share[head]) == pytest.approx(expected, abs=1e-10)
        assert found.simplex_null_share[head] <= found.null_share[head] + 1e-12


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("mask", ["full", "causal", "window", "prefix"])
def test_simplex_nullity_is_the_largest_of_the_rows(mask, sink):
    """Tokens that repeat early leave rows of a window free, though its last row is fixed."""
    generator, n = seeded(3), 30
    values = normals(generator, 2, n, 12)
    values[:, :14] = values[:, :1]
    visible = masks(n)[mask]
    weights = softmax_of(normals(generator, 2, n, n), visible)
    seen = seen_of(visible, weights[0])
    layer = TensorLayer(ProjectedValues(values, 12), weights, visible)
    layer.has_sink = sink
    largest = [
        max(
            len(rows)
            - int(torch.linalg.matrix_rank(torch.cat([rows, torch.ones(len(rows), 1)], 1)))
            for rows in (torch.cat([head[keys], head.new_zeros(int(sink), 12)]) for keys in seen)
        )
        for head in values
    ]
    assert min(largest) > 0
    assert measure_layer(layer).simplex_nullity.tolist() == largest
