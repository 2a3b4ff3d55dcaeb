"""Certificates of full rank: what lies on which side of the limit."""

import pytest
import torch

from helpers.heads import doubles, normals, seeded
from identilens.linalg.factor import (
    certified_full_rank,
    factorise,
    inverse_cholesky,
    least_share,
)


@pytest.mark.parametrize("tolerance", [1e-6, 1e-3])
@pytest.mark.parametrize(("share", "certified"), [(0.5, False), (2.0, True)])
def test_a_certificate_is_given_just_above_the_limit_and_not_below(tolerance, share, certified):
    least = least_share(tolerance)
    assert least == pytest.approx(1e-6) or tolerance < 1e-3
    gram = torch.diag(doubles([1.0, 0.5, 0.0]))
    gram[2, 2] = share * least * (1 + 0.5**4) ** 0.25
    assert bool(certified_full_rank(gram, tolerance)) == certified
    assert bool(inverse_cholesky(gram[None], tolerance)[2]) == certified
    assert not certified_full_rank(gram, tolerance, doubles(10.0)), (
        "a larger bound makes the limit larger"
    )


def test_ranks_with_and_without_a_certificate_are_those_of_the_singular_values():
    generator = seeded()
    left, right = (torch.linalg.qr(normals(generator, 8, 8))[0] for _ in range(2))
    for small, rank in ((1e-2, 8), (1e-5, 8), (1e-7, 7), (0.0, 7)):
        sigma = torch.linspace(1, 2, 8, dtype=torch.float64)
        sigma[0] = small
        assert int(factorise(left @ torch.diag(sigma) @ right, 1e-6).rank) == rank


def test_each_matrix_of_a_batch_may_have_its_own_tolerance():
    generator = seeded(1)
    values = normals(generator, 1, 30, 5).repeat(3, 1, 1)
    values[:, :, 0] *= 1e-4
    found = factorise(values, doubles([1e-6, 1e-3, 1e-5]))
    assert found.rank.tolist() == [5, 4, 5]
    for index, tolerance in enumerate((1e-6, 1e-3, 1e-5)):
        alone = factorise(values[index], tolerance)
        torch.testing.assert_close(
            found.basis[index] @ found.coordinates[index].mT, alone.basis @ alone.coordinates.mT
        )
