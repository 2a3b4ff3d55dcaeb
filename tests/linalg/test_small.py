"""Logits, factors and the messages of what does not fit, by hand."""

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import doubles, normals, seeded
from identilens.linalg import ProjectedValues
from identilens.linalg.compact import OutputFactor
from identilens.linalg.factor import factorise, least_squares
from identilens.linalg.simplex import (
    joint_space,
)

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def drawn(*shape):
    return normals(seeded(sum(shape)), *shape)


def test_projections_least_squares_and_bases_of_outputs():
    values = drawn(6, 2) @ drawn(2, 4)
    pseudo, rows = torch.linalg.pinv(values), drawn(3, 6)
    found = factorise(values, 1e-6)
    assert_close(rows @ found.basis @ found.basis.mT, rows @ values @ pseudo)
    assert_close(least_squares(values, drawn(6, 3)), pseudo @ drawn(6, 3))
    visible = torch.ones(6, 6, dtype=torch.bool).tril()
    visible[2] = visible[4]
    T = ProjectedValues.of(values)
    bases = T.output_bases(6, visible)
    assert bases[2] is bases[4]
    for basis, seen in zip(bases, visible, strict=True):
        centred = torch.zeros_like(values)
        centred[seen] = values[seen] - values[seen].mean(0)
        assert_close(basis @ basis.mT, centred @ torch.linalg.pinv(centred, rtol=1e-9))
    assert len({*map(id, T.output_bases(2))}) == 1
    assert_close(T.output_bases(2)[0], bases[5])


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (2, 3, 5)])
def test_a_factor_has_the_gram_matrix_of_the_projection(shape):
    projection = drawn(*shape)
    factor = OutputFactor.of(projection)
    rows, columns = shape[-2:]
    assert factor.lower.shape[-1] == min(rows, columns)
    assert factor.d_model == columns
    assert_close(factor.lower @ factor.lower.mT, projection @ projection.mT)
    if rows <= columns:
        assert_close(
            factor.inverse @ factor.lower, torch.eye(rows).double().expand(*shape[:-2], -1, -1)
        )
    else:
        assert bool(factor.inverse.isnan().all())
    values = drawn(*shape[:-2], 6, rows)
    compact, T = values @ factor.lower, values @ projection
    assert_close(compact @ compact.mT, T @ T.mT)


def test_dependent_rows_of_a_projection_have_no_inverse_and_the_right_gram_matrix():
    projection = drawn(3, 5)
    projection[2] = projection[0] + projection[1]
    factor = OutputFactor.of(projection)
    assert_close(factor.lower @ factor.lower.mT, projection @ projection.mT)
    assert OutputFactor.of(drawn(3, 5)).is_spared(12)
    assert not OutputFactor.of(drawn(3, 5)).is_spared(11)
    assert not OutputFactor.of(drawn(5, 3)).is_spared(100)


def test_spaces_of_a_row_by_hand():
    """Keys of the values 0, 1 and 1, of which the last one or none is hidden."""
    values = doubles([[0.0], [1.0], [1.0], [5.0]])
    seen = torch.tensor([True, True, True, False])
    space = joint_space(values[None], seen, 1e-6)
    assert (space.rank, space.nullity) == (2, 1)
    assert_close(space.free.abs()[:, 0], torch.tensor([0, 0.5, 0.5, 0]).double().sqrt())
    assert space.movable.tolist() == [False, True, True, False]
    assert float(space.scales[0]) == torch.inf
    assert_close(space.kept[:3, 0].abs(), torch.full((3,), 3**-0.5).double())
    assert not bool(space.kept[3].any())
    # A unit change along the second column moves the mixture by ‖values‖ along it.
    assert_close(space.scales[1], (space.kept[:3, 1] @ values[:3, 0]).abs())
    both = joint_space(torch.stack([values, 2 * values]), seen, 1e-6)
    assert both.blocks.tolist() == [0] * 4 + [1] * 4
    assert both.visible.tolist() == [True, True, True, False] * 2
    assert both.scales.isinf().tolist() == [True, True, False]
    assert both.nullity == 0
    assert_close(both.kept.mT @ both.kept, torch.eye(3).double())
    centred = (
        torch.cat([values[:3], 2 * values[:3]])
        - torch.tensor([2 / 3] * 3 + [4 / 3] * 3).double()[:, None]
    )
    assert_close(both.scales[2], centred.norm())
