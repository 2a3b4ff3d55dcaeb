"""Eq. 11 and its standard errors."""

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import doubles, normals, seeded, uniforms
from identilens.errors import NumericalError
from identilens.measures.mixing import alti_contributions, contributions
from identilens.measures.mixing.alti import alti_rollout
from identilens.measures.mixing.rollout import attention_rollout, mean_over_heads, norm_weights


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


def test_two_layers_by_hand():
    first = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    second = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    found = attention_rollout(torch.stack([first, second]))
    assert_close(found[0], torch.tensor([[0.75, 0.25], [0.0, 1.0]]))
    assert_close(found[1], torch.tensor([[0.375, 0.625], [0.375, 0.625]]))


def test_raw_weights_are_their_plain_mean():
    generator = seeded(1)
    weights = uniforms(generator, 5, 6, 6).softmax(-1)
    assert_close(mean_over_heads(weights), weights.mean(0))


def test_negative_weights_count_by_size_and_do_not_cancel():
    weights = torch.tensor([[[0.6, -0.2], [0.3, -0.3]], [[-0.6, 0.2], [0.0, 0.0]]])
    assert_close(mean_over_heads(weights), torch.tensor([[0.75, 0.25], [0.5, 0.5]]))


def test_a_query_without_effective_attention_keeps_its_own_token():
    weights = torch.zeros(2, 3, 3)
    assert_close(mean_over_heads(weights), torch.eye(3))
    assert_close(attention_rollout(mean_over_heads(weights)[None])[0], torch.eye(3))


def test_a_row_that_no_part_brings_nearer_is_even_over_the_parts_there_are():
    parts, output = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), torch.tensor([0.2, -0.1])
    assert alti_contributions(parts, output).tolist() == [0.5, 0.5, 0.0]


def test_parts_share_by_how_much_nearer_each_brings_the_output():
    """Of ‖y‖₁ = 6 the parts take 3, 2 and 1, and the last leads away; scaled parts share alike."""
    parts = torch.tensor([[3.0, 0.0], [1.0, 1.0], [0.0, 3.0], [0.0, -2.0]])
    both = torch.stack([parts, 5 * parts])
    found = alti_contributions(both, both.sum(-2))
    assert_close(found, torch.tensor([[3 / 6, 2 / 6, 1 / 6, 0.0]] * 2))


def test_alti_of_all_layers_is_their_product():
    layers = torch.rand(3, 4, 4, generator=seeded()).softmax(-1)
    rolled = alti_rollout(layers)
    assert torch.equal(rolled[0], layers[0])
    assert torch.allclose(rolled[2], layers[2] @ layers[1] @ layers[0])


def test_norms_are_those_of_what_the_heads_pass_on_together():
    generator = seeded()
    weights = torch.rand(2, 3, 4, generator=generator)
    values = torch.randn(2, 4, 5, generator=generator)
    expected = torch.einsum("hqk,hkd->qkd", weights, values).norm(dim=-1)
    assert_close(norm_weights(weights, values), expected)
