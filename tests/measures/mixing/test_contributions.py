"""Eq. 11 and its standard errors."""

import pytest
import torch

from identilens.errors import NumericalError
from identilens.measures.mixing import contributions


def test_shares_by_hand():
    squares = torch.tensor([[9.0, 1.0], [0.0, 4.0]], dtype=torch.float64)
    found = contributions(squares, torch.zeros_like(squares))
    assert found.shares.tolist() == [[0.75, 0.25], [0.0, 1.0]]
    assert not found.errors.any()


def test_errors_match_a_simulation():
    generator = torch.Generator().manual_seed(0)
    squares = torch.rand(3, 6, generator=generator, dtype=torch.float64) + 0.5
    deviations = 0.04 * torch.rand(3, 6, generator=generator, dtype=torch.float64)
    found = contributions(squares, deviations.square())
    noise = torch.randn(20_000, 3, 6, generator=generator, dtype=torch.float64)
    seen = contributions(
        squares + noise * deviations, torch.zeros(20_000, 3, 6, dtype=torch.float64)
    ).shares.std(0)
    torch.testing.assert_close(found.errors, seen, rtol=0.04, atol=0)


def test_errors_of_shared_probes_are_those_of_the_derivative():
    """The variance of a share is the sum of squares of what each probe's deviation changes of it."""
    generator = torch.Generator().manual_seed(0)
    squares = torch.rand(2, 4, generator=generator, dtype=torch.float64) + 0.5
    deviations = 0.1 * torch.randn(5, 2, 4, generator=generator, dtype=torch.float64)
    found = contributions(squares, deviations.square().sum(0), deviations=deviations)
    for row in range(2):
        slope = torch.func.jacrev(lambda N: N.sqrt() / N.sqrt().sum())(squares[row])
        expected = (deviations[:, row] @ slope.mT).square().sum(0).sqrt()
        torch.testing.assert_close(found.errors[row], expected)
    found = contributions(
        torch.tensor([[0.0, 4.0]]), torch.zeros(1, 2), deviations=torch.ones(1, 1, 2)
    )
    assert found.errors.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("freedom", [3, 11])
def test_intervals_of_few_samples_cover_the_truth(freedom):
    """Squares and variances estimated from a few normal samples each, as a sketch estimates them."""
    generator = torch.Generator().manual_seed(freedom)
    truth = torch.rand(6, generator=generator, dtype=torch.float64) + 0.5
    samples = truth + 0.05 * torch.randn(
        freedom + 1, 4000, 6, generator=generator, dtype=torch.float64
    )
    found = contributions(samples.mean(0), samples.var(0) / (freedom + 1), freedom)
    exact = contributions(truth[None], torch.zeros(1, 6, dtype=torch.float64)).shares
    assert 0.94 < float(((found.shares - exact).abs() <= found.margins).double().mean()) < 0.99
    assert float(((found.shares - exact).abs() <= 1.96 * found.errors).double().mean()) < 0.945


def test_intervals_of_skewed_samples_cover_more_than_symmetric_ones():
    """Squares of normal numbers, as Jacobians of rank one give them."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(6, generator=generator, dtype=torch.float64) + 0.5
    normal = torch.randn(6, 4000, 6, generator=generator, dtype=torch.float64)
    samples = truth * normal.square()
    found = contributions(samples.mean(0), samples.var(0) / 6, freedom=5)
    distance = (
        found.shares - contributions(truth[None], torch.zeros(1, 6, dtype=torch.float64)).shares
    ).abs()
    covered, symmetric = (
        float((distance <= width).double().mean())
        for width in (found.margins, 2.571 * found.errors)
    )
    assert symmetric < 0.93 < 0.945 < covered < 0.97


def test_margins_end_at_the_range_of_a_share():
    found = contributions(torch.tensor([[1e-8, 1.0]]), torch.tensor([[1.0, 1.0]]), freedom=1)
    assert found.margins.tolist() == [[1.0, 1.0]]


def test_a_sure_zero_has_no_error():
    squares = torch.tensor([[2.0, 0.0, 3.0]], dtype=torch.float64)
    found = contributions(squares, torch.tensor([[0.1, 0.0, 0.1]], dtype=torch.float64))
    assert found.shares[0, 1] == 0
    assert found.errors[0, 1] == 0
    assert bool((found.errors[0, [0, 2]] > 0).all())


@pytest.mark.parametrize("bad", [0.0, float("nan")])
def test_a_state_that_nothing_changes_is_an_error(bad):
    squares = torch.tensor([[1.0, 2.0], [bad, bad]], dtype=torch.float64)
    with pytest.raises(NumericalError, match="defined"):
        contributions(squares, torch.zeros_like(squares))
