"""Norms of one hidden token by reverse mode, against exact ones by forward mode and against the sketch's promises."""

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import normals, seeded
from identilens.errors import InputError
from identilens.measures.mixing import contributions
from identilens.models.derivative.jacobian import jacobian_norms, output_norms
from models.derivative.test_jacobian import hidden_map


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("token", [0, 4])
def test_as_many_probes_as_dimensions_are_exact(family, token):
    hidden = hidden_map(family, length=6)
    expected = jacobian_norms(hidden, hidden.inputs, method="exact")[-1].squares[token]
    found = output_norms(
        lambda x: hidden(x)[-1], hidden.inputs, token, probes=hidden.inputs.shape[1]
    )
    assert_close(found.squares[0], expected, rtol=1e-9, atol=1e-14)
    assert not found.variances.any()


def test_two_probes_are_enough_and_one_is_not():
    inputs = torch.zeros(4, 16).double()
    found = output_norms(lambda x: 3 * x, inputs, 2, probes=2)
    assert found.squares.shape == (1, 4)
    assert float(found.squares[0, 2]) == pytest.approx(9 * 16)
    assert found.squares[0, [0, 1, 3]].tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="probes"):
        output_norms(lambda x: x, inputs, 2, probes=1)


def test_fewer_probes_are_unbiased_and_know_their_variance():
    jacobian = normals(seeded(), 5, 24, 4, 16)
    expected = jacobian[2].square().sum((0, 2))
    inputs = torch.zeros(4, 16).double()
    runs = [
        output_norms(
            lambda x: torch.einsum("jaib,ib->ja", jacobian, x), inputs, 2, probes=8, seed=seed
        )
        for seed in range(200)
    ]
    squares = torch.cat([run.squares for run in runs])
    variances = torch.cat([run.variances for run in runs])
    # One probe serves all inputs: errors of shares are those of runs, not of independent norms.
    shares = [contributions(run.squares, run.variances, 7, run.deviations) for run in runs]
    spread = torch.cat([one.shares for one in shares]).std(0)
    errors = torch.cat([one.errors for one in shares])
    assert_close(errors.square().mean(0).sqrt(), spread, rtol=0.2, atol=0)
    # Of the mean of 200 runs, 4 standard errors.
    assert bool(((squares.mean(0) - expected).abs() <= 4 * squares.std(0) / len(runs) ** 0.5).all())
    assert_close(variances.mean(0), squares.var(0), rtol=0.35, atol=0)
