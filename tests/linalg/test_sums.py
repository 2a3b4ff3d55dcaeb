"""Sums over rows of raw and effective attention under every mask, beside sums over the maps themselves."""

import pytest
import torch

from helpers.heads import causal, seeded
from identilens.linalg import ProjectedValues

N, D_V = 11, 3


def patterns():
    i, j = torch.arange(N)[:, None], torch.arange(N)[None]
    irregular = (torch.rand(N, N, generator=seeded(1)) < 0.6) | (i == j)
    return {
        "full": None, "causal": "causal", "window": (i - j).abs() < 4, "prefix": (j <= i) | (j < 4),
        "irregular": irregular,
    }  # fmt: skip


@pytest.mark.parametrize("name", patterns())
def test_every_sum_is_that_of_the_maps(name):
    visible = patterns()[name]
    seen = {"full": torch.ones(N, N, dtype=torch.bool), "causal": causal(N)}.get(name, visible)
    generator = seeded(2)
    values = torch.randn(2, N, D_V, generator=generator, dtype=torch.float64)
    logits = torch.randn(2, N, N, generator=generator, dtype=torch.float64)
    weights = logits.masked_fill(~seen, -torch.inf).softmax(-1)
    types = torch.nn.functional.one_hot(torch.arange(N) % 3, 3).double().expand(2, -1, -1)
    projected = ProjectedValues(values, 4 * D_V)
    projector = projected.projector(N, visible)
    found = projector.sums(slice(None), weights.clone(), weights @ types, types)
    sums = found.sums
    effective, outside, simplex = (torch.zeros(2, N, N).double(), *torch.zeros(2, 2, N).double())
    for head in range(2):
        for row in range(N):
            keys = seen[row]
            T = values[head, keys]
            joined = torch.cat([T, torch.ones(len(T), 1)], 1)
            P, both = T @ torch.linalg.pinv(T), joined @ torch.linalg.pinv(joined)
            own = weights[head, row, keys]
            effective[head, row, keys] = own @ P
            outside[head, row] = (
                (torch.ones(len(T)).double() @ (torch.eye(len(T)) - P)).square().sum()
            )
            simplex[head, row] = (own - own @ both).square().sum()
    sizes = seen.sum(-1).double()
    even = torch.as_tensor(sums.even, dtype=torch.float64).expand(N)
    torch.testing.assert_close(even, 1 / sizes, atol=1e-12, rtol=0)
    moved, moved_effective = (
        (one - even[:, None]).masked_fill(~seen, 0.0) for one in (weights, effective)
    )
    # Where [T, 1] has no more rank than T, rounding is all that is left of the ones.
    expected = {
        "raw": moved.sum(-1),
        "raw_square": moved.square().sum(-1),
        "effective": moved_effective.sum(-1),
        "effective_square": moved_effective.square().sum(-1),
        "cross": (moved * moved_effective).sum(-1),
        "outside": outside,
        "null_square": (weights - effective).square().sum(-1),
        "simplex_null_square": simplex,
    }
    for field, value in expected.items():
        torch.testing.assert_close(getattr(sums, field), value, atol=1e-9, rtol=0, msg=field)
    torch.testing.assert_close(found.received, effective @ types, atol=1e-9, rtol=0)
    places = found.places
    torch.testing.assert_close(
        found.rebuilt, (effective @ projected.compact)[:, places], atol=1e-9, rtol=0
    )


def test_a_sink_is_one_more_key():
    """Weights of 0.8 in all, and a sink of 0.2 whose value is zero, put beside the keys."""
    values = torch.randn(1, N, D_V, generator=seeded(3), dtype=torch.float64)
    weights = 0.8 * torch.randn(1, N, N, generator=seeded(4), dtype=torch.float64).softmax(-1)
    types = torch.ones(1, N, 1, dtype=torch.float64)

    def sums(values, weights, types):
        projector = ProjectedValues(values, 4 * D_V).projector(N, None)
        return projector.sums(slice(None), weights, weights @ types, types).sums

    found = sums(values, weights, types).with_sink()
    beside = torch.nn.functional.pad(weights, (0, 1), value=0.2)
    expected = sums(
        torch.nn.functional.pad(values, (0, 0, 0, 1)), beside, torch.ones(1, N + 1, 1).double()
    )
    for field in ("even", "raw", "raw_square", "effective", "effective_square", "cross", "outside"):
        one, other = (
            torch.as_tensor(getattr(each, field), dtype=torch.float64) for each in (found, expected)
        )
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0, msg=field)
