"""Numerical rank and nullity of the projected values (Brunner et al. 2020, 3.1-3.3; Bhardwaj et al. 2021, 3.1)."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from identilens.linalg import ProjectedValues, projected


@dataclass(frozen=True)
class RankReport:
    """How many directions of the weights change the head output; tensors have one entry per head.

    Attributes:
        rank: Number of singular values of T above the tolerance.
        nullity: n - rank, the dimension of the left null space LN(T) (Brunner Eq. 6).
        simplex_nullity: n - rank([T, 1]), the dimension of LN([T, 1]) (Brunner 3.3).
        tolerance: Absolute threshold, max(n, d_model) * eps * σ_max (Bhardwaj footnote 4).
        singular_values: Singular values of T, largest first, min(n, d_v, d_model) of them.
    """

    rank: Int[Tensor, "*batch"]
    nullity: Int[Tensor, "*batch"]
    simplex_nullity: Int[Tensor, "*batch"]
    tolerance: Float[Tensor, "*batch"]
    singular_values: Float[Tensor, "*batch k"]


def numerical_rank(
    values: Float[Tensor, "*batch key d_v"] | ProjectedValues,
    output_projection: Float[Tensor, "*#batch d_v d_model"] | None = None,
) -> RankReport:
    """Return rank, nullity and simplex nullity of T = values @ output_projection.

    The product is never computed: T has the singular values of its factor (n x d_v), in float64. The simplex nullity
    does not depend on the units of the values. Cost O(n d_v²) per head.

    Args:
        values: V, value bias included; or T itself without a projection; or both as `ProjectedValues`.
        output_projection: W_O, one head's block (Brunner: H; Bhardwaj: D).

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import numerical_rank
        >>> values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> found = numerical_rank(values)
        >>> found.rank, found.nullity, found.simplex_nullity
        (tensor(2), tensor(1), tensor(0))

    Raises:
        InputError: For shapes that do not fit, or an empty sequence.
        NumericalError: For NaN or infinite entries.
    """
    T = projected(values, output_projection)
    sigma, rank = T.singular_values, T.rank
    return RankReport(rank, T.keys - rank, T.simplex_nullity, T.tolerance * sigma[..., 0], sigma)
