"""The logit rank that an alternative on the simplex needs."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import HeadValues, head_values, relative_tolerance
from identilens.linalg.decompositions import singular_values
from identilens.measures.attention.checks import check_precision, checked_weights
from identilens.measures.attention.samplers import sample_alternatives
from identilens.measures.attention.simplex import total_variation

Map = Float[Tensor, "query key"]
"""A number of each key in each row."""


@dataclass(frozen=True)
class LogitRankStudy:
    """Least logit ranks of many alternatives of one head (Bhardwaj et al. 2021, Fig. 5).

    Attributes:
        ranks: Least rank of log A' + c 1ᵀ over c, one per alternative.
        original_rank: The same rank for the head's own weights; at most d_k.
        d_k: The largest rank that the head can produce (P4).
        seq_len: Number of keys n; no least rank exceeds n − 1.
        simplex_nullity: Dimension of LN([T, 1]).
        output_error: Largest ‖(A' − A) T‖ / ‖A T‖ over all alternatives.
        mean_total_variation: Mean distance of the alternatives from A.
        tolerance: Share of the largest singular value below which one counts as zero.
    """

    ranks: Int[Tensor, " count"]
    original_rank: int
    d_k: int
    seq_len: int
    simplex_nullity: int
    output_error: float
    mean_total_variation: float
    tolerance: float

    @property
    def realisable_share(self) -> float:
        """Share of the alternatives that satisfy P4."""
        return float((self.ranks <= self.d_k).double().mean())


def least_logit_rank(
    weights: Float[Tensor, "*batch query key"],
    *,
    tolerance: float | None = None,
) -> Int[Tensor, "*batch"]:
    """Return the least rank of any logits whose softmax is the given weights: min over c of rank(log A' + c 1ᵀ).

    The rows of log A' minus their mean have that rank: for L = log A' (I − 11ᵀ/n), L 1 = 0, so rank(L + c 1ᵀ) is at
    least the rank of L on the complement of 1, which is rank(L). The paper's c = −â_1 (Bhardwaj et al. 2021, 3.2.2)
    subtracts the first column instead, spans the same differences and has the same rank, at most n − 1. A' is
    bidirectional. ``tolerance`` is the share of the largest singular value that counts as zero; the default is the
    `relative_tolerance` of n x n.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import least_logit_rank
        >>> queries, keys = torch.randn(2, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> least_logit_rank(torch.softmax(queries @ keys.T, -1))
        tensor(2)

    Raises:
        InputError: A weight of zero, which no softmax gives: a masked head, or a step of exactly λ_max; weights in
            half precision, whose rounding has full rank.
    """
    check_precision(weights)
    rows = weights.detach().double()
    if not rows.numel():
        return rows.new_zeros(rows.shape[:-2], dtype=torch.int64)
    if not torch.isfinite(rows).all() or rows.min() <= 0:
        raise InputError(
            f"expected positive weights, as a softmax gives them; the least is {rows.min().item():.3g}; "
            "the logits of masked keys are free and have no least rank here; stay below λ_max with share < 1."
        )
    logarithms = torch.log(rows)
    sigma = singular_values(logarithms - logarithms.mean(-1, keepdim=True))
    if tolerance is None:
        tolerance = float(relative_tolerance(*rows.shape[-2:]))
    # For uniform rows the difference is only rounding: compare it with the rounding of log A'.
    noise = torch.finfo(torch.float64).eps * torch.linalg.matrix_norm(logarithms)[..., None]
    return (sigma > torch.maximum(tolerance * sigma[..., :1], noise)).sum(-1)


def logit_rank_study(
    weights: Map,
    projected_values: HeadValues,
    d_k: int,
    *,
    count: int = 1000,
    generator: torch.Generator | None = None,
) -> LogitRankStudy:
    """Return the least logit ranks of many alternatives: the protocol of Bhardwaj et al. 2021, Fig. 5.

    Alternatives have coefficients uniform on [−10, 10] in an orthonormal basis of LN([T, 1]). Rows are scaled to λ =
    0.99 λ_max: at λ_max, a weight would be zero and its logit minus infinity. The weights A are bidirectional. One
    alternative is in memory at a time; cost O(count · n³).

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import logit_rank_study
        >>> generator = torch.Generator().manual_seed(0)
        >>> queries, keys, T = torch.randn(3, 6, 2, generator=generator, dtype=torch.float64)
        >>> weights = torch.softmax(queries @ keys.T, -1)
        >>> found = logit_rank_study(weights, T, d_k=2, count=20, generator=generator)
        >>> found.ranks.unique().tolist()
        [5]
    """
    if count < 1 or d_k < 1:
        raise InputError(
            f"expected a count and d_k of at least 1; got {count} and {d_k}; "
            "the paper's protocol is count=1000 with the head's own d_k."
        )
    if not len(weights):
        raise InputError(
            "expected the weights of at least one query; got none; leave empty texts out."
        )
    projection = head_values(projected_values)
    A = checked_weights(weights, projection)
    T, tolerance = projection.compact.detach(), projection.tolerance
    output = torch.linalg.matrix_norm(A @ T)
    ranks, worst, distance = [], 0.0, 0.0
    for _ in range(count):
        [alternative] = sample_alternatives(
            weights, projection, 1, method="bhardwaj", share=0.99, generator=generator
        )
        ranks.append(int(least_logit_rank(alternative, tolerance=tolerance)))
        worst = max(worst, float(torch.linalg.matrix_norm((alternative - A) @ T) / output))
        distance += float(total_variation(A, alternative).mean())
    return LogitRankStudy(
        ranks=torch.tensor(ranks),
        original_rank=int(least_logit_rank(A, tolerance=tolerance)),
        d_k=d_k,
        seq_len=A.shape[1],
        simplex_nullity=projection.simplex_space().nullity,
        output_error=worst,
        mean_total_variation=distance / count,
        tolerance=tolerance,
    )
