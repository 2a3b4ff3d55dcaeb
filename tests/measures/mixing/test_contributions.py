"""Eq. 11 and its standard errors."""

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import doubles, normals, seeded, uniforms
from identilens.errors import NumericalError
from identilens.measures.mixing import contributions


def test_shares_by_hand():
    squares = doubles([[9.0, 1.0], [0.0, 4.0]])
    found = contributions(squares, torch.zeros_like(squares))
    assert found.shares.tolist() == [[0.75, 0.25], [0.0, 1.0]]
    assert not found.errors.any()


def test_errors_of_shared_probes_are_those_of_the_derivative():
    """The variance of a share is the sum of squares of what each probe's deviation changes of it."""
    generator = seeded()
    squares = uniforms(generator, 2, 4) + 0.5
    deviations = 0.1 * normals(generator, 5, 2, 4)
    found = contributions(squares, deviations.square().sum(0), deviations=deviations)
    for row in range(2):
        slope = torch.func.jacrev(lambda N: N.sqrt() / N.sqrt().sum())(squares[row])
        expected = (deviations[:, row] @ slope.mT).square().sum(0).sqrt()
        assert_close(found.errors[row], expected)
    found = contributions(
        torch.tensor([[0.0, 4.0]]), torch.zeros(1, 2), deviations=torch.ones(1, 1, 2)
    )
    assert found.errors.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("freedom", [3, 11])
def test_intervals_of_few_samples_cover_the_truth(freedom):
    """Squares and variances estimated from a few normal samples each, as a sketch estimates them."""
    generator = seeded(freedom)
    truth = uniforms(generator, 6) + 0.5
    samples = truth + 0.05 * normals(generator, freedom + 1, 4000, 6)
    found = contributions(samples.mean(0), samples.var(0) / (freedom + 1), freedom)
    exact = contributions(truth[None], torch.zeros(1, 6).double()).shares
    assert 0.94 < float(((found.shares - exact).abs() <= found.margins).double().mean()) < 0.99
    assert float(((found.shares - exact).abs() <= 1.96 * found.errors).double().mean()) < 0.945


def test_intervals_of_skewed_samples_cover_more_than_symmetric_ones():
    """Squares of normal numbers, as Jacobians of rank one give them."""
    generator = seeded()
    truth = uniforms(generator, 6) + 0.5
    normal = normals(generator, 6, 4000, 6)
    samples = truth * normal.square()
    found = contributions(samples.mean(0), samples.var(0) / 6, freedom=5)
    distance = (found.shares - contributions(truth[None], torch.zeros(1, 6).double()).shares).abs()
    covered, symmetric = (
        float((distance <= width).double().mean())
        for width in (found.margins, 2.571 * found.errors)
    )
    assert symmetric < 0.93 < 0.945 < covered < 0.97


def test_margins_end_at_the_range_of_a_share():
    found = contributions(torch.tensor([[1e-8, 1.0]]), torch.tensor([[1.0, 1.0]]), freedom=1)
    assert found.margins.tolist() == [[1.0, 1.0]]


def test_a_sure_zero_has_no_error():
    squares = doubles([[2.0, 0.0, 3.0]])
    found = contributions(squares, doubles([[0.1, 0.0, 0.1]]))
    assert found.shares[0, 1] == 0
    assert found.errors[0, 1] == 0
    assert bool((found.errors[0, [0, 2]] > 0).all())


@pytest.mark.parametrize("bad", [0.0, float("nan")])
def test_a_state_that_nothing_changes_is_an_error(bad):
    squares = doubles([[1.0, 2.0], [bad, bad]])
    with pytest.raises(NumericalError, match="defined"):
        contributions(squares, torch.zeros_like(squares))
