"""Sums over causal rows equal those of effective attention, row by row."""

import pytest
import torch

from identilens.linalg import ProjectedValues
from identilens.linalg.causal_rows import sampled_rows


def example(n, d_v, repeated, dtype):
    """Weights and values of four heads; of the last two the first rows of T repeat, so that they span it late."""
    generator = torch.Generator().manual_seed(n + d_v)
    values = torch.randn(4, n, d_v, generator=generator, dtype=torch.float64)
    for head, rows in ((2, d_v + repeated), (3, d_v + 3 * repeated)):
        values[head, 2:rows] = values[head, :1]
    logits = 2 * torch.randn(4, n, n, generator=generator, dtype=torch.float64)
    hidden = torch.ones(n, n).triu(1).bool()
    weights = logits.masked_fill(hidden, -torch.inf).softmax(-1).to(dtype)
    types = torch.nn.functional.one_hot(torch.arange(n) % 3, 3).double().expand(4, -1, -1)
    return ProjectedValues(values, 4 * d_v), weights, types


def without_even(sums):
    """Return Σ a, ‖a‖², ‖P a‖² from sums of what remains when the even share m is subtracted."""
    even, total, effective = sums.even, sums.raw + 1, sums.effective + 1
    return (
        total,
        sums.raw_square + 2 * even * total - even,
        sums.effective_square + 2 * even * effective - even,
    )


def in_blocks(projected, weights, types, size, narrow=False):
    n = weights.shape[1]
    causal = projected.projector(n, "causal")
    parts, places, outputs = [], [], []
    for start in range(0, n, size):
        rows = slice(start, min(start + size, n))
        given = weights[:, rows, : rows.stop if narrow else n]
        raw = given @ types[:, : given.shape[-1]].to(given.dtype)
        found = causal.sums(rows, given, raw, types)
        parts.append((*without_even(found.sums), found.received, found.sums.outside))
        places += [start + place for place in found.places]
        outputs.append(found.rebuilt)
    return [torch.cat(one, 1) for one in zip(*parts, strict=True)], places, torch.cat(outputs, 1)


@pytest.mark.parametrize(("dtype", "accuracy"), [(torch.float64, 1e-9), (torch.float32, 2e-6)])
@pytest.mark.parametrize("size", [5, 64, 300])
@pytest.mark.parametrize(
    ("n", "d_v", "repeated"), [(300, 8, 0), (300, 8, 3), (150, 32, 9), (40, 33, 2), (20, 33, 1)]
)
def test_sums_of_blocks_are_those_of_effective_attention(n, d_v, repeated, size, dtype, accuracy):
    projected, weights, types = example(n, d_v, repeated, dtype)
    projector, exact = projected.projector(n, "causal"), weights.double()
    effective = projector.effective(slice(None), exact)
    ones = torch.ones(n, n, dtype=torch.float64).tril().expand(4, -1, -1)
    outside = (ones - projector.effective(slice(None), ones)).square().sum(-1)
    for narrow in (False, True):
        found, places, output = in_blocks(projected, weights, types, size, narrow)
        expected = (
            exact.sum(-1),
            exact.square().sum(-1),
            effective.square().sum(-1),
            effective @ types,
            outside,
        )
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, atol=accuracy, rtol=accuracy)
        assert places == sampled_rows(slice(0, n))
        torch.testing.assert_close(
            output, (effective @ projected.compact)[:, places], atol=2e-6, rtol=2e-6
        )


def test_rows_far_into_a_text_are_checked_less_often():
    assert sampled_rows(slice(0, 300)) == [0, 32, 64, 96, 128, 256]
    assert sampled_rows(slice(70, 130)) == [96, 128]


def test_rows_out_of_order_are_refused():
    projected, weights, types = example(20, 4, 0, torch.float64)
    causal = projected.projector(20, "causal")
    with pytest.raises(ValueError, match="expected row 0"):
        causal.sums(slice(4, 8), weights[:, 4:8], weights[:, 4:8] @ types, types)
