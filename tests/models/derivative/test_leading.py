"""Leading directions of maps whose blocks are known."""

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import doubles, normals
from identilens.errors import InputError, NumericalError
from identilens.models.derivative.jacobian import (
    check_probes,
    estimate,
    leading_directions,
    orthonormal_probes,
)


def seeded():
    return torch.Generator().manual_seed(0)


def test_the_direction_that_other_tokens_feel():
    """Each hidden token is its own input turned, and the others' along one direction."""
    inputs = normals(seeded(), 5, 6)
    felt = torch.nn.functional.normalize(torch.arange(1.0, 7.0, dtype=torch.float64), dim=0)
    out = normals(seeded(), 6)

    def function(given):
        others = (given.sum(0) - given) @ felt
        return given + 3 * others[:, None] * out, others[:, None] * out

    found = leading_directions(function, inputs, 1, 8, seeded(), 2**30)
    assert found.shape == (5, 6, 1)
    assert_close(found[..., 0].abs(), felt.expand(5, 6), atol=1e-6, rtol=0)
    small = leading_directions(function, inputs, 1, 8, seeded(), 2**18)
    assert_close(small, found)
    assert leading_directions(function, inputs, 0, 8, seeded(), 2**30).shape == (5, 6, 0)
    probes = orthonormal_probes(found, 4, seeded())
    assert_close(probes.mT @ probes, torch.eye(4).double().expand(5, 4, 4))
    assert_close((found * probes[..., :1]).sum(1).abs(), torch.ones(5, 1).double())


def test_derivatives_that_are_not_finite_are_refused():
    with pytest.raises(NumericalError, match="derivative"):
        leading_directions(
            lambda given: (given * torch.nan,), torch.ones(3, 4), 1, 4, seeded(), 2**30
        )


def test_numbers_of_probes_by_their_bounds():
    for probes, leading in ((2, 0), (6, 0), (6, 4)):
        check_probes(probes, leading, 6)
    for probes in (1, 7):
        with pytest.raises(InputError, match=f"probes must be from 2 to 6, .* got {probes}"):
            check_probes(probes, 0, 6)
    for probes, leading in ((6, 5), (6, -1), (2, 1)):
        with pytest.raises(
            InputError, match=f"leading must be from 0 to {probes - 2}: .* got {leading}"
        ):
            check_probes(probes, leading, 6)


def test_norms_of_sums_over_probes_by_hand():
    # Of 6 dimensions 1 leads; of the other 5, 2 probes have the squares 1 and 3.
    sums = doubles([[[10.0]], [[4.0]], [[10.0]]]).reshape(1, 3, 1)
    found = estimate(sums, 6, 3, 1)
    assert float(found.squares) == pytest.approx(10 + 5 * 2)
    # s² = 2; 25 · 2 / 2 · (1 − 2/5).
    assert float(found.variances) == pytest.approx(15)
    assert found.freedom == 1
    exact = estimate(sums, 3, 3, 1)
    assert (float(exact.squares), float(exact.variances), exact.freedom) == (14.0, 0.0, 0)
    rounded = estimate(doubles([[[0.0], [4.0], [7.9]]]), 6, 2, 0)
    assert float(rounded.variances) == 0
    with pytest.raises(NumericalError, match="NaN or infinite"):
        estimate(sums * torch.inf, 6, 3, 1)
