"""Effective attention against a plain SVD reference: masks, ranks, precisions, real heads."""

import math

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import causal, doubles, masks, normals, random_weights, seeded, softmax_of
from helpers.reference import effective_svd, rank_svd
from identilens.errors import InputError
from identilens.linalg import relative_tolerance
from identilens.measures.attention import (
    effective_attention,
    far_alternatives,
    least_logit_rank,
    numerical_rank,
    sample_alternatives,
)


def make_head(n, d_v, d_model, rank=None, dtype=torch.float32, heads=2, mask=None, seed=0):
    generator = seeded(seed)

    def normal(*shape):
        return normals(generator, *shape)

    values = (
        normal(heads, n, d_v) if rank is None else normal(heads, n, rank) @ normal(heads, rank, d_v)
    )
    projection = normal(heads, d_v, d_model) * 0.1
    weights = softmax_of(normal(heads, n, n) * 2, mask)
    return values.to(dtype), projection.to(dtype), weights.to(dtype)


def agreement(effective, reference, weights):
    return float((effective.double() - reference).abs().max() / weights.abs().max())


@pytest.mark.parametrize("mask", list(masks(1)))
@pytest.mark.parametrize(
    ("n", "d_v", "rank"),
    [(5, 8, None), (8, 8, None), (30, 8, None), (90, 8, None), (40, 8, 3), (9, 12, 4)],
)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-6), (torch.float32, 1e-5)])
def test_agrees_with_svd(mask, n, d_v, rank, dtype, limit):
    visible = masks(n)[mask]
    values, projection, weights = make_head(n, d_v, 24, rank, dtype=torch.float64, mask=visible)
    values, projection, weights = values.to(dtype), projection.to(dtype), weights.to(dtype)
    found = effective_attention(
        values, weights=weights, output_projection=projection, visible=visible
    )
    assert found.effective.dtype == dtype
    for head in range(2):
        T = values[head].double() @ projection[head].double()
        if rank is not None and dtype == torch.float32:
            # Rounding to float32 fills the missing directions with noise just around the tolerance.
            continue
        reference = effective_svd(weights[head], T, visible)
        assert agreement(found.effective[head], reference, weights[head]) < limit
        if visible is None:
            assert int(found.rank[head]) == rank_svd(T)
            assert int(found.nullity[head]) == n - rank_svd(T)
        else:
            assert found.rank[head].tolist() == [rank_svd(T[seen]) for seen in visible]
            assert not found.effective[head][~visible].any()
    assert_close(found.null, weights - found.effective)


def conditioned(matrices, condition):
    """The matrices with singular values from 1 down to 1 / condition."""
    left, sigma, right = torch.linalg.svd(matrices, full_matrices=False)
    return left * torch.logspace(0, -math.log10(condition), sigma.shape[-1]) @ right


@pytest.mark.parametrize(
    "case",
    [
        "plain", "shared projection", "one head", "conditions of 50", "conditions of 1,000", "dependent values",
        "dependent projection", "dependent first columns", "as many keys as d_v", "narrow projection",
        "zero projection", "huge values",
    ],
)  # fmt: skip
def test_projections_of_every_condition(case):
    values, projection, weights = make_head(
        8 if case == "as many keys as d_v" else 30, 8, 40, dtype=torch.float64
    )
    if case == "shared projection":
        projection = projection[:1]
    if case == "one head":
        values, projection, weights = values[0], projection[0], weights[0]
    if case.startswith("conditions"):
        size = float(case.rsplit(" ", 1)[1].replace(",", ""))
        values, projection = conditioned(values, size), conditioned(projection, size)
    if case == "dependent values":
        values[1, :, 3] = values[1, :, 2]
    if case == "dependent projection":
        projection[1, 3] = projection[1, 2]
    if case == "dependent first columns":
        projection[1, 3, :32] = projection[1, 2, :32]
    if case == "narrow projection":
        projection = projection[..., :5]
    if case == "zero projection":
        projection = 0 * projection
    if case == "huge values":
        values = 1e160 * values
    tolerance = relative_tolerance(values.shape[-2], projection.shape[-1])
    found = effective_attention(values, weights=weights, output_projection=projection)
    T = values @ projection
    assert found.rank.tolist() == torch.linalg.matrix_rank(T, rtol=tolerance).tolist()
    assert found.tolerance == tolerance
    assert torch.equal(found.nullity, values.shape[-2] - found.rank)
    inverse = torch.linalg.pinv(T, rtol=tolerance)
    assert_close(found.effective, weights @ T @ inverse, atol=1e-9, rtol=0)


def test_long_causal_text_in_blocks():
    """Several blocks of rows, so that the nested factorisation starts from several bases."""
    visible = masks(300)["causal"]
    values, projection, weights = make_head(300, 8, 24, dtype=torch.float64, heads=1, mask=visible)
    found = effective_attention(
        values, weights=weights, output_projection=projection, visible=visible
    )
    T = values[0] @ projection[0]
    assert agreement(found.effective[0], effective_svd(weights[0], T, visible), weights[0]) < 1e-9


def test_every_head_of_the_bundled_model(bundled):
    text = (
        "The ferry left the harbour before dawn, and nobody on the quay could say who had paid for it. "
        "Letters arrived for weeks afterwards, each with a different stamp, asking for a man called Ormond."
    )
    captured = next(bundled.capture([text], weights=True))
    for head in captured.heads:
        T = head.values.double() @ head.output_projection.double()
        found = effective_attention(
            head.values, weights=head.weights, output_projection=head.output_projection
        )
        assert int(found.rank) == rank_svd(T) == min(len(T), 32)
        assert agreement(found.effective, effective_svd(head.weights, T), head.weights) < 1e-5
        double = effective_attention(
            head.values.double(),
            weights=head.weights.double(),
            output_projection=head.output_projection.double(),
        )
        assert agreement(double.effective, effective_svd(head.weights, T), head.weights) < 1e-6


def test_rank_by_construction():
    """The answer first: singular values chosen, then the matrix made from them."""
    left = torch.linalg.qr(torch.randn(40, 12, dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(16, 12, dtype=torch.float64)).Q
    sigma = doubles([5.0, 4, 3, 2, 1, 1e-1, 1e-2, 1e-3, 1e-4, 1e-7, 1e-9, 1e-12])
    report = numerical_rank(left * sigma @ right.mT)
    assert int(report.rank) == 9
    assert int(report.nullity) == 31
    assert int(report.simplex_nullity) == 30
    assert_close(report.singular_values[:9], sigma[:9], rtol=1e-8, atol=0)
    assert float(report.tolerance) == pytest.approx(40 * 1.1920929e-07 * 5)


def test_ones_take_away_at_most_one_dimension_where_singular_values_reach_the_tolerance():
    generator = seeded()
    values, projection = (normals(generator, 128, 128) for _ in range(2))
    report = numerical_rank(
        values, projection @ torch.diag(torch.logspace(0, -5, 128, dtype=torch.float64))
    )
    assert int(report.nullity) == 25
    assert int(report.simplex_nullity) == 24


METHODS = ("brunner", "bhardwaj", "uniform")


@pytest.mark.parametrize("heads", [(), (2, 3)])
def test_weight_on_hidden_keys_has_no_effective_part(heads):
    """The projector would spread what stands on the hidden keys over the visible ones."""
    visible = causal(5)
    values = torch.randn(*heads, 5, 3, dtype=torch.float64)
    weights = torch.rand(*heads, 5, 5, dtype=torch.float64).mul(0.1).tril() + torch.eye(5)
    expected = effective_attention(values, weights=weights, visible=visible)
    rounded = weights.clone()
    rounded[..., 1, 3] = 9e-4
    found = effective_attention(values, weights=rounded, visible=visible)
    assert torch.equal(found.effective, expected.effective)
    assert torch.equal(found.null, expected.null)
    rounded[(*(size - 1 for size in heads), 1, 3)] = 0.01
    where = r"row 1 of head \[1, 2\] puts 0.01" if heads else "row 1 puts 0.01"
    with pytest.raises(
        InputError, match=f"no weight on hidden keys; {where} on a key that `visible` hides"
    ):
        effective_attention(values, weights=rounded, visible=visible)


@pytest.mark.parametrize("visible", [None, torch.ones(0, 5, dtype=torch.bool)])
def test_no_query_gives_no_alternative(visible):
    _, T = random_weights(0, 5, 2)
    none = torch.zeros(0, 5).double()
    assert effective_attention(T, weights=none, visible=visible).effective.shape == (0, 5)
    for method in METHODS:
        assert sample_alternatives(none, T, 2, method=method, visible=visible).shape == (2, 0, 5)
    assert far_alternatives(none, T, visible=visible).shape == (0, 5)


@pytest.mark.parametrize("visible", [None, causal(5), causal(5).T | causal(5)])
def test_no_head_gives_empty_results(visible):
    values, weights = torch.zeros(0, 3, 5, 2), torch.zeros(0, 3, 5, 5)
    found = effective_attention(values, weights=weights, visible=visible)
    assert found.effective.shape == (0, 3, 5, 5)
    assert found.rank.shape == found.nullity.shape == ((0, 3) if visible is None else (0, 3, 5))
    report = numerical_rank(values, torch.zeros(3, 2, 8))
    assert report.rank.shape == report.simplex_nullity.shape == (0, 3)
    assert least_logit_rank(torch.zeros(0, 5, 5)).shape == (0,)
    assert int(least_logit_rank(torch.zeros(0, 5))) == 0
