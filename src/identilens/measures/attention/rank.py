"""Numerical rank and nullity of the projected values (Brunner et al. 2020, 3.1-3.3; Bhardwaj et al. 2021, 3.1)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.linalg import certified_rank, compact_values, relative_tolerance, with_ones
from identilens.measures.attention.arguments import check_finite, check_projection

_VALUES_AT_ONCE = 2**20


@dataclass(frozen=True)
class RankReport:
    """How many directions of weights the head output can tell apart; tensors have one entry a head.

    Attributes:
        rank: Singular values of T above the tolerance.
        nullity: n - rank, the dimension of the left null space LN(T) (Brunner Eq. 6).
        simplex_nullity: n - rank([T, 1]), the dimension of LN([T, 1]) (Brunner 3.3).
        tolerance: Absolute threshold, max(n, d_model) * eps * σ_max (Bhardwaj footnote 4).
        singular_values: Of T, largest first, min(n, d_v, d_model) of them.
    """

    rank: Int[Tensor, "*batch"]
    nullity: Int[Tensor, "*batch"]
    simplex_nullity: Int[Tensor, "*batch"]
    tolerance: Float[Tensor, "*batch"]
    singular_values: Float[Tensor, "*batch k"]


def numerical_rank(
    values: Float[Tensor, "*batch key d_v"], output_projection: Float[Tensor, "*#batch d_v d_model"] | None = None
) -> RankReport:
    """Return rank, nullity and simplex nullity of T = values @ output_projection.

    The product is never formed: T has the singular values of ``compact_values`` (n x d_v), computed in
    float64. In the simplex nullity the column of ones is scaled to T's singular values, so that the answer does
    not depend on the units of the values. Cost O(n d_v²) a head.

    Args:
        values: V, value bias included; or T itself without a projection.
        output_projection: W_O, one head's block (Brunner: H; Bhardwaj: D).

    Raises:
        InputError: For shapes that do not fit, or an empty sequence.
        NumericalError: For NaN or infinite entries.
    """
    d_model = check_projection(values, output_projection)
    check_finite(values=values, output_projection=output_projection)
    n = values.shape[-2]
    compact = compact_values(values, output_projection)
    sigma = torch.linalg.svdvals(compact)
    tolerance = relative_tolerance(n, d_model) * sigma[..., 0]
    rank = (sigma > tolerance[..., None]).sum(-1)
    return RankReport(rank, n - rank, simplex_nullity(compact, rank, d_model), tolerance, sigma)


def simplex_nullity(
    compact: Float[Tensor, "*batch n r"], rank: Int[Tensor, "*batch"], d_model: int
) -> Int[Tensor, "*batch"]:
    """Return n - rank([T, 1]), the dimension of LN([T, 1]) (Brunner 3.3): rank(T) or one more is taken away.

    Args:
        compact: Of each head, as from `compact_values`.
        rank: rank(T).
        d_model: Columns of T.
    """
    n = compact.shape[-2]
    tolerance = relative_tolerance(n, d_model + 1)
    # A few heads at a time in long texts, so that no second copy of all values is held.
    step = max(1, _VALUES_AT_ONCE // compact.shape[-2:].numel())
    heads = compact.reshape(-1, *compact.shape[-2:]).split(step)
    ranks = torch.cat([certified_rank(with_ones(some), tolerance) for some in heads])
    return n - ranks.reshape(rank.shape).clamp(rank, rank + 1)
