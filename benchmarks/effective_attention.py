"""Effective attention against a full SVD of each T: 12 heads, d_model 768, d_v 64, float32.

The reference decomposes every T whole and projects with its left singular vectors, as the papers do; for causal
heads it does so for every row. The causal reference is timed on a sample of rows and scaled, the sample stated.
"""

import sys
from functools import partial

import torch
from common import machine, milliseconds, ratios, report, seconds, turns

from identilens.linalg import FLOAT32_EPS
from identilens.measures.attention import effective_attention

HEADS, D_MODEL, D_V = 12, 768, 64
SAMPLED_ROWS = 24


def reference(weights: torch.Tensor, projected: torch.Tensor) -> torch.Tensor:
    left, sigma, _ = torch.linalg.svd(projected, full_matrices=True)
    rank = int((sigma > max(projected.shape) * FLOAT32_EPS * sigma.max()).sum())
    null = left[:, rank:]
    return weights - (weights @ null) @ null.mT


def reference_heads(weights: torch.Tensor, products: torch.Tensor) -> list[torch.Tensor]:
    return [reference(a, t) for a, t in zip(weights, products, strict=True)]


def main() -> int:
    torch.manual_seed(0)
    print(machine())
    met = True
    for n, target in ((128, 20), (512, 40)):
        values, projection = torch.randn(HEADS, n, D_V), torch.randn(HEADS, D_V, D_MODEL) / D_V**0.5
        weights = torch.randn(HEADS, n, n).softmax(-1)
        products = values @ projection
        plain, fast = turns(
            [
                partial(reference_heads, weights, products),
                partial(effective_attention, values, weights=weights, output_projection=projection),
            ],
            repeats=21,
        )
        found = effective_attention(values, weights=weights, output_projection=projection).effective
        worst = max(
            float((found[h] - reference(weights[h], products[h])).abs().max()) for h in range(HEADS)
        )
        print(
            f"n={n}: full SVD {milliseconds(plain)}, identilens {milliseconds(fast)}, largest difference {worst:.1e}"
        )
        met &= report(f"full SVD / identilens, n={n}", ratios(plain, fast), target)

    n = 512
    values, projection = torch.randn(HEADS, n, D_V), torch.randn(HEADS, D_V, D_MODEL) / D_V**0.5
    hidden = torch.ones(n, n).triu(1).bool()
    weights = torch.randn(HEADS, n, n).masked_fill(hidden, -torch.inf).softmax(-1)
    products = values @ projection
    rows = torch.linspace(0, n - 1, SAMPLED_ROWS).long().tolist()

    def sampled_rows() -> None:
        for row in rows:
            reference(weights[0, row : row + 1, : row + 1], products[0, : row + 1])

    def causal() -> None:
        effective_attention(values, weights=weights, output_projection=projection, visible="causal")

    causal()
    plain, fast = [], []
    for _ in range(3):
        plain.append(seconds(sampled_rows) * n / SAMPLED_ROWS * HEADS)
        fast.append(seconds(causal))
    print(
        f"causal n={n}: an SVD for each row {min(plain):.1f} s (from {SAMPLED_ROWS} rows of one head), "
        f"identilens {milliseconds(fast)}"
    )
    met &= report(f"SVD per row / identilens, causal n={n}", ratios(plain, fast), 700)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
