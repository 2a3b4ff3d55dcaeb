"""Realisable alternatives: the dimension, the walk and the maximum-entropy alternative at the size of a real head.

The dimension for n = 64, d_k = d_v = 32 stands against the plain way, the rank of the whole Jacobian by one dense SVD.
"""

import sys
import time

import torch
from common import machine, report

from identilens.measures.attention.entropy import maximum_entropy_alternative
from identilens.measures.attention.realisable.alternative import realisable_alternative
from identilens.measures.attention.realisable.dimension import realisable_dimension


def dense_rank(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> int:
    """Return the rank of the output's Jacobian in (Q, K), formed whole."""
    n, d_k = queries.shape
    weights = torch.softmax(queries @ keys.T / d_k**0.5, -1)
    maps = (values[None] - (weights @ values)[:, None]) * weights[:, :, None]
    by_query = torch.zeros(n, values.shape[1], n, d_k, dtype=torch.float64)
    by_query[torch.arange(n), :, torch.arange(n)] = maps.mT @ keys
    by_key = torch.einsum("ijv,ik->ivjk", maps, queries)
    return int(
        torch.linalg.matrix_rank(torch.cat([by_query, by_key], 2).reshape(n * values.shape[1], -1))
    )


def main() -> int:
    torch.set_num_threads(1)
    print(machine())
    met = True
    for n, d_k, d_v in ((64, 32, 32), (64, 20, 32), (64, 16, 32)):
        generator = torch.Generator().manual_seed(d_k)
        queries, keys = (
            torch.randn(n, d_k, generator=generator, dtype=torch.float64) for _ in range(2)
        )
        values = torch.randn(n, d_v, generator=generator, dtype=torch.float64)
        start = time.perf_counter()
        found = realisable_dimension(queries, keys, values)
        elapsed = time.perf_counter() - start
        print(
            f"n = {n}, d_k = {d_k}, d_v = {d_v}: dimension {found.dimension}, formula {found.formula}, {elapsed:.2f} s"
        )
        if found.dimension != found.formula:
            return 1
        if d_k == d_v:
            start = time.perf_counter()
            rank = dense_rank(queries, keys, values)
            dense = time.perf_counter() - start
            print(f"  whole Jacobian by a dense SVD: {dense:.2f} s, rank {rank}")
            met &= report(
                f"a dense SVD over the dimension, n = {n}, d_k = d_v = {d_k}", dense / elapsed, 5
            )
            if rank != found.jacobian_rank:
                return 1
        if found.dimension:
            start = time.perf_counter()
            walked = realisable_alternative(
                queries, keys, values, distance=0.1, generator=generator
            )
            print(
                f"  walk to mean total variation {walked.distance:.3f}: {time.perf_counter() - start:.2f} s, "
                f"{walked.steps} steps, output error {walked.output_error:.1e}"
            )
        if d_k >= d_v:
            start = time.perf_counter()
            even = maximum_entropy_alternative(
                torch.softmax(queries @ keys.T / d_k**0.5, -1), values
            )
            print(
                f"  maximum entropy: {time.perf_counter() - start:.2f} s, output error {even.output_error:.1e}"
            )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
