"""Alternatives whose output is nearly the same: intervals, certain mass, order and functionals up to a tolerance."""

from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import causal
from helpers.programs import LINE, LINE_ROW, random_row
from identilens.measures.attention import (
    attention_intervals,
    certain_mass,
    certify_row,
    functional_interval,
)
from identilens.measures.attention.determined import certain_weights

TOLERANCES = (0.0, 2**-24, 2**-8, 0.02, 0.1, 1.0)


def line(tolerance):
    return attention_intervals(LINE_ROW, torch.tensor(LINE).double()[:, None], tolerance=tolerance)


def test_line_by_hand():
    """Keys at 0, 1 and 1/2, weights .2, .2, .6: the output is .5, so that a tolerance of .1 lets it be .45 to .55."""
    found = line(0.1)
    assert found.tolerance == 0.1
    # Least of the third: all on the ends. Most of the first: output .45, nothing on the third.
    assert found.lo.tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-8)
    assert found.hi.tolist() == pytest.approx([0.55, 0.55, 1.0], abs=1e-7)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("n", "d"), [(12, 4), (20, 19), (9, 16)])
def test_wider_with_the_tolerance_and_exact_without(n, d, masked):
    row, T = random_row(n, n, d, 3.0)
    visible = None
    if masked:
        visible = causal(n)[n - 3]
        row = (row * visible) / (row * visible).sum()
    exact = attention_intervals(row, T, visible=visible)
    nearly = attention_intervals(row, T, visible=visible, tolerance=1e-10)
    for side in ("lo", "hi"):
        assert_close(getattr(nearly, side), getattr(exact, side), atol=1e-7, rtol=0)
    found = [attention_intervals(row, T, visible=visible, tolerance=one) for one in TOLERANCES]
    for narrow, wide in pairwise(found):
        assert (wide.lo <= narrow.lo + 1e-8).all()
        assert (wide.hi >= narrow.hi - 1e-8).all()
        assert wide.gap <= 1e-7
    if masked:
        assert (found[-1].hi[~visible] == 0).all()


def test_short_text_is_determined_exactly_and_not_up_to_rounding():
    """With fewer keys than directions the output fixes every weight, but not once it is rounded."""
    row, T = random_row(0, 24, 32, 1.0)
    T[:, 20:] *= 1e-3  # the last directions hardly matter to the output
    assert float(certain_mass(row[None], T)) == pytest.approx(1.0, abs=1e-9)
    assert float(certain_mass(row[None], T, tolerance=2**-8)) < 0.9


@pytest.mark.parametrize("tolerance", [2**-8, 0.1])
def test_certain_mass_alone_and_together(tolerance):
    rows = torch.stack([random_row(seed, 24, 6, 4.0)[0] for seed in range(12)])
    T = random_row(99, 24, 6, 1.0)[1]
    together = certain_weights(rows, T, tolerance=tolerance)
    alone = torch.cat([certain_weights(row[None], T, tolerance=tolerance) for row in rows])
    assert_close(together, alone, atol=1e-7, rtol=0)
    ends = torch.stack([attention_intervals(row, T, tolerance=tolerance).lo for row in rows])
    assert_close(together, ends, atol=1e-7, rtol=0)


def test_order_and_functionals_up_to_a_tolerance():
    row, T = random_row(3, 16, 6, 4.0)
    exact, loose = (certify_row(row, T, tolerance=one) for one in (0.0, 0.05))
    assert exact.above.sum() > loose.above.sum() > 0
    assert not (loose.above & ~exact.above).any()
    pairs = torch.nonzero(exact.above)
    units = torch.eye(16).double()
    least = functional_interval(row, T, units[pairs[:, 0]] - units[pairs[:, 1]], tolerance=0.05).lo
    assert ((least > 1e-9) == loose.above[pairs[:, 0], pairs[:, 1]]).all()
    first = int(row.argmax())
    rest = torch.arange(16) != first
    assert (loose.top == first) == bool(loose.above[first, rest].all())
    group = torch.zeros(1, 16).double()
    group[0, row.topk(2).indices] = 1.0
    narrow, wide = (functional_interval(row, T, group, tolerance=one) for one in (0.0, 0.05))
    assert wide.lo < narrow.lo <= narrow.value <= narrow.hi < wide.hi


def test_a_row_without_output_does_not_speak_for_the_others():
    T = random_row(0, 10, 9, 1.0)[1]
    T[1] = -T[0]
    rows = torch.stack([random_row(seed, 10, 9, 1.0)[0] for seed in range(9)])
    rows[0] = 0.0
    rows[0, :2] = 0.5
    found = certain_mass(rows, T, tolerance=0.1)
    alone = [attention_intervals(row, T, tolerance=0.1).lo.sum() for row in rows[1:]]
    assert_close(found[1:], torch.stack(alone), atol=1e-6, rtol=0)
    assert float(found[1:].max()) < 0.9
