"""Verdicts on single rows: the words for heads made by hand, the numbers of random ones."""

import pytest
import torch

from helpers.heads import doubles, normals, seeded
from identilens.linalg import ProjectedValues
from identilens.measures.attention import attention_intervals, norm_share, removal_effect
from identilens.studies.certify.rows import (
    EVEN,
    FLOOR,
    ROW,
    SCHEMA,
    VERDICTS,
    WITHIN,
    certified_row,
)
from identilens.studies.outcomes import of_head

BOTH, DETERMINED, INFLUENTIAL, NEITHER, NEGLIGIBLE = VERDICTS


def row_of(seed=0, n=12, d_v=7):
    generator = seeded(seed)
    values = normals(generator, n, d_v)
    logits = normals(generator, n)
    return (2 * logits).softmax(-1), values @ normals(generator, d_v, 9)


def columns(kept):
    """The columns of the weights of a row."""
    return certified_row(kept, "abcdefghijklmn").columns


def verdicts(weights, T):
    weights, T = (doubles(numbers) for numbers in (weights, T))
    return columns(of_head(weights, T, None))["verdict"]


def test_a_short_row_is_determined_key_by_key():
    T = [[0.0, 0.1], [3.0, 0.0], [0.0, 3.0]]
    # Three keys, three equations: nothing can move. The first key draws most attention and adds nearly nothing.
    assert verdicts([0.8, 0.1, 0.1], T) == [DETERMINED, BOTH, BOTH]
    assert verdicts([0.9, 0.0, 0.1], T) == [DETERMINED, NEGLIGIBLE, BOTH]


def test_keys_of_equal_values_are_free_and_their_sum_is_not():
    # The first two add the same: any split of their 0.6 gives the same output.
    T = [[2.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    assert verdicts([0.3, 0.3, 0.3, 0.1], T) == [INFLUENTIAL, INFLUENTIAL, DETERMINED, NEGLIGIBLE]
    # A small weight that an alternative may raise to 0.6 is not negligible.
    assert verdicts([0.59, 0.01, 0.3, 0.1], T)[1] == NEITHER


def test_a_key_alone_and_even_attention_on_equal_parts_are_influential():
    assert verdicts([1.0], [[1.0, 2.0]]) == [BOTH]
    angles = torch.arange(3).double() * 2 * torch.pi / 3
    T = torch.stack([angles.cos(), angles.sin()], 1)
    even = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert columns(of_head(even, T, None))["verdict"] == [BOTH] * 3
    assert columns(of_head(torch.ones(1).double(), T[:1], None))["removal"] == [None]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("masked", [False, True])
def test_columns_are_those_of_the_measures_and_verdicts_follow_from_them(seed, masked):
    weights, T = row_of(seed)
    visible = torch.arange(len(weights)) < 9 if masked else None
    if masked:
        weights = weights.masked_fill(~visible, 0)
        weights = weights / weights.sum()
    found = columns(of_head(weights, ProjectedValues.of(T), visible))
    assert {*found, "outcome", "certificate"} >= set(SCHEMA["table"]) - set(ROW)
    keys = len(found["key"])
    assert found["key"] == list(range(9 if masked else 12))
    bounds = attention_intervals(weights, T, visible=visible)
    assert found["value"] == pytest.approx(weights[:keys].tolist(), abs=1e-15)
    for name, expected in (
        ("lo", bounds.lo), ("hi", bounds.hi), ("norm_share", norm_share(weights[None], T)[0]),
        ("removal", removal_effect(weights[None], T, relative=True)[0]),
    ):  # fmt: skip
        assert found[name] == pytest.approx(expected[:keys].tolist(), rel=1e-9, abs=1e-12)
    assert sum(found["contribution"]) == pytest.approx(1)
    words = []
    for a, lo, hi, share in zip(
        *(found[name] for name in ("value", "lo", "hi", "norm_share")), strict=True
    ):
        held, influential = lo >= a * (1 - WITHIN) and hi <= a * (1 + WITHIN), share >= EVEN / keys
        small = not influential and hi < FLOOR / keys
        words.append(NEGLIGIBLE if small else VERDICTS[2 * (not held) + (not influential)])
    assert found["verdict"] == words
    assert len(set(words)) > 1


def test_determined_rests_on_the_interval_not_on_directions():
    """Where T is next to zero at a key, its effective weight vanishes; positive weights that sum to 1 still fix it."""
    T = torch.cat([torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])]).double()
    weights = doubles([0.94, 0.03, 0.02, 0.01])
    found = columns(of_head(weights, T, None))
    assert float(ProjectedValues.of(T).effective(weights[None])[0, 0]) == pytest.approx(
        0, abs=1e-12
    )
    assert found["verdict"][0] == DETERMINED
    assert (found["lo"][0], found["hi"][0]) == pytest.approx((0.93, 0.96))
