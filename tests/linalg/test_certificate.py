"""Proofs of both ends of a functional: by hand, against cone programs, and of numbers that prove nothing."""

from dataclasses import replace
from math import inf, nan

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import doubles, normals, seeded
from helpers.programs import by_clarabel, programs_of, random_row
from identilens.linalg.certificate import Certificate

HAND = {
    "row": [0.4, 0.6, 1.0], "factor": [[3.0, 4.0], [0.0, 1.0], [1.0, 0.0]], "functional": [1.0, -2.0, 4.0],
    "tolerance": 0.5, "multipliers": [[0.6, 0.8], [-1.0, 0.0]], "ends": [0.0, 1.0],
    "witnesses": [[0.9, 0.1, 1.0], [0.4, 0.6, 1.0]],
}  # fmt: skip
"""Keys 0 and 1 are a row of sum 1, key 2 a row of its own."""


def certificate(blocks=(0, 0, 7), **numbers):
    held = {name: doubles(value) for name, value in (HAND | numbers).items()}
    return Certificate(**held, blocks=torch.tensor(blocks))


def test_what_multipliers_prove_by_hand():
    """y aF is 3.08 and -2.2, and the costs c - F y are (-4, -2.8, 3.4) and (2, 2, -3)."""
    expected = doubles([3.08 - 0.5 - 4 + 3.4, 2.2 + 0.5 - 2 + 3])
    lo, hi = found = certificate().proven()
    assert_close(found, expected, atol=1e-12, rtol=0)
    # Rounding is taken off: the proven ends are wider.
    assert lo < expected[0]
    assert hi > expected[1]
    one_row = certificate(blocks=(3, 3, 3)).proven().tolist()
    assert one_row == pytest.approx([-4, 8], abs=1e-12), "signs and sums prove more"
    # Only rounding is left of huge multipliers.
    huge = certificate(multipliers=[[1e25, 1e25], [1e25, -1e25]]).proven().tolist()
    assert huge == pytest.approx([-2.0, 5.0], abs=1e-12)


def test_ends_hold_up_to_the_slack():
    kept = certificate()
    lo, hi = kept.proven()
    assert kept.slack == pytest.approx(8e-9)
    for share, holds in ((-0.9, True), (0.9, True), (1.1, False)):
        inward = share * kept.slack
        assert replace(kept, ends=torch.stack([lo + inward, hi])).holds == holds
        assert replace(kept, ends=torch.stack([lo, hi - inward])).holds == holds
    wide = doubles([-1e9, 1e9])
    assert replace(kept, ends=wide).holds
    for wrong in ({"multipliers": [[nan, 0.0], [0.0, 0.0]]}, {"functional": [inf, 0.0, 0.0]}):
        assert not replace(certificate(**wrong), ends=wide).holds


def test_witnesses_are_alternatives_up_to_rounding():
    """The first one moves the mixture by (1.5, 1.5); the row sums to 2, and the longest row of F is 5."""
    moved = 1.5 * 2**0.5
    for beyond, is_met in ((0.9e-6, True), (1.1e-6, False)):
        met = certificate(tolerance=moved - beyond).met
        assert (met is not None) == is_met
    assert certificate(tolerance=moved).met.tolist() == pytest.approx([4.7, 3.2])
    for wrong, is_met in ((1.9e-7, True), (2.1e-7, False)):
        for witness in ([0.4 + wrong, 0.6, 1.0], [0.4, 0.6, 1.0 - wrong], [1 + wrong, -wrong, 1.0]):
            met = certificate(tolerance=9.0, witnesses=[witness, HAND["row"]]).met
            assert (met is not None) == is_met
    traded = [[0.3, 0.6, 1.1], HAND["row"]]
    assert certificate(tolerance=9.0, witnesses=traded).met is None
    assert certificate(tolerance=9.0, witnesses=traded, blocks=(2, 2, 2)).met is not None


@pytest.mark.parametrize("seed", range(3))
def test_ends_are_those_of_cone_programs(seed):
    row, T = random_row(seed, 14, 4, 2.0)
    c = normals(seeded(seed), 14)
    for allowed in (0.0, 0.06):
        found = programs_of(row, T, allowed).certificate(0, c)
        assert found.holds
        large = programs_of(row, T, allowed).certificate(0, 1e4 * c)
        assert large.holds
        assert large.ends.tolist() == pytest.approx((1e4 * found.ends).tolist(), rel=1e-6)
        expected = [sign * by_clarabel(sign * c, row, T, max(allowed, 1e-12)) for sign in (1, -1)]
        assert found.ends.tolist() == pytest.approx(expected, abs=1e-6)
        assert found.met.tolist() == pytest.approx(expected, abs=1e-6)
        if allowed:
            assert replace(found, tolerance=0.9 * found.tolerance).met is None


def test_an_end_that_the_signs_prove_is_not_below_zero_by_rounding():
    kept = certificate(
        blocks=(0, 0), row=[0.5, 0.5], factor=[[1.0], [2.0]], functional=[0.0, 1.0], tolerance=0.0,
        multipliers=[[-1e-15], [-1.0]], witnesses=[[0.5, 0.5]] * 2,
    )  # fmt: skip
    lo, hi = kept.proven().tolist()
    assert (str(lo), hi) == ("0.0", pytest.approx(0.5))
    # 1 − c is at most 1, which signs and sums prove as well, up to rounding.
    turned = replace(kept, functional=1.0 - kept.functional)
    assert turned.proven()[1].item() == pytest.approx(1.0, abs=1e-14)
