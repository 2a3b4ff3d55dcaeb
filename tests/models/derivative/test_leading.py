"""Leading directions of maps whose blocks are known."""

import pytest
import torch

from identilens.errors import NumericalError
from identilens.models.derivative.jacobian import leading_directions, orthonormal_probes


def seeded():
    return torch.Generator().manual_seed(0)


def test_the_direction_that_other_tokens_feel():
    """Each hidden token is its own input turned, and the others' along one direction."""
    inputs = torch.randn(5, 6, generator=seeded(), dtype=torch.float64)
    felt = torch.nn.functional.normalize(torch.arange(1.0, 7.0, dtype=torch.float64), dim=0)
    out = torch.randn(6, generator=seeded(), dtype=torch.float64)

    def function(given):
        others = (given.sum(0) - given) @ felt
        return given + 3 * others[:, None] * out, others[:, None] * out

    found = leading_directions(function, inputs, 1, 8, seeded(), 2**30)
    assert found.shape == (5, 6, 1)
    torch.testing.assert_close(found[..., 0].abs(), felt.expand(5, 6), atol=1e-6, rtol=0)
    small = leading_directions(function, inputs, 1, 8, seeded(), 2**18)
    torch.testing.assert_close(small, found)
    assert leading_directions(function, inputs, 0, 8, seeded(), 2**30).shape == (5, 6, 0)
    probes = orthonormal_probes(found, 4, seeded())
    torch.testing.assert_close(probes.mT @ probes, torch.eye(4).double().expand(5, 4, 4))
    torch.testing.assert_close((found * probes[..., :1]).sum(1).abs(), torch.ones(5, 1).double())


def test_derivatives_that_are_not_finite_are_refused():
    with pytest.raises(NumericalError, match="the derivative of a hidden state is NaN"):
        leading_directions(
            lambda given: (given * torch.nan,), torch.ones(3, 4), 1, 4, seeded(), 2**30
        )
