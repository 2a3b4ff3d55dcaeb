"""In how many directions a head's queries and keys can change without changing its output."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from identilens.errors import InputError, NumericalError
from identilens.measures.attention.checks import check_numbers
from identilens.measures.attention.realisable.coordinates import MEMORY_LIMIT
from identilens.measures.attention.realisable.softmax_map import (
    SoftmaxMap,
    output_conditions,
    weight_conditions,
)

RANK_TOLERANCE = 1e-12
"""Singular values of a Jacobian below this share of its largest count as zero (float64 arithmetic)."""


@dataclass(frozen=True)
class RealisableDimension:
    """Local dimension of the alternatives that other queries and keys of the same size produce.

    An upper bound, if jacobian_rank is less than the number of conditions (Σ_i rank([T, 1]) − 1 over the rows).

    Attributes:
        dimension: weights_rank − jacobian_rank.
        formula: Dimension for generic queries, keys and values of these sizes and masks; None if the visible sets are
            not nested (sliding windows), or if parameters cannot make any queries and keys.
        parameters: Number of entries of Q and K, or of the parameters that move.
        jacobian_rank: Rank of the Jacobian of the output in these.
        weights_rank: Rank of the Jacobian of the weights in these; parameters − weights_rank is the gauge.
        regular: Whether the Jacobian of the weights has the rank that it has for generic Q and K, or parameters. If
            not, more weights can be reached at second order, and the dimension is only that of first order.
        tolerance: Share of the largest singular value below which a singular value counts as zero.
    """

    dimension: int
    formula: int | None
    parameters: int
    jacobian_rank: int
    weights_rank: int
    regular: bool
    tolerance: float

    @property
    def gauge(self) -> int:
        """Dimension of the changes of Q and K that change no weight: d_k² + d_k in the generic case."""
        return self.parameters - self.weights_rank

    @property
    def kernel(self) -> int:
        """Dimension of the changes of Q and K that do not change the output."""
        return self.parameters - self.jacobian_rank


def generic_dimension(counts: list[int], d_k: int, ranks: list[int]) -> int:
    """Return the generic dimension for rows with nested visible sets (bidirectional, causal, prefix, cross).

    With m_1 <= … <= m_n visible keys, the weights of the first t rows form a manifold of dimension
    W(t) = Σ_{i <= t} w_i, where w_i = m_i − 1 for the last d_k of those rows and min(d_k, m_i − 1) for the
    others. The output's Jacobian has rank min over t of W(t) + Σ_{i > t} r_i: the first t rows are
    identified, the others meet their r_i conditions. The dimension is W(n) minus that rank: for a long bidirectional
    text max(0, n (2 d_k − r) − d_k² − d_k).
    The ``counts`` m_i can be in any order. The ``ranks`` r_i = rank([T, 1]) − 1 over the row's visible keys must be in
    the same order.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import generic_dimension
        >>> generic_dimension([40] * 40, 8, [4] * 40)
        408

    Raises:
        InputError: No lists of one length, or a rank that its count of keys does not allow.
    """
    check_numbers(1, d_k=d_k)
    if len(counts) != len(ranks) or not all(
        0 <= rank < count for count, rank in zip(counts, ranks, strict=True)
    ):
        raise InputError(
            f"expected lists of one length with a rank below each count; got {counts} and {ranks}."
        )
    rows = sorted(zip(counts, ranks, strict=True))
    reached = [free_rank([count for count, _ in rows[:t]], d_k) for t in range(len(rows) + 1)]
    return reached[-1] - nested_rank(reached, [rank for _, rank in rows])


def free_rank(counts: Sequence[int], d_k: int) -> int:
    """Return W: in how many directions the weights of rows can move, for any vectors of size d_k as queries and keys.

    The rows are in the order of their numbers m_i of visible keys.
    """
    free = [count - 1 for count in counts]
    split = max(0, len(free) - d_k)
    return sum(min(d_k, size) for size in free[:split]) + sum(free[split:])


def nested_rank(reached: Sequence[int], ranks: Sequence[int]) -> int:
    """Return min over t of W(t) + Σ_{i > t} r_i, the generic rank of the output's Jacobian.

    W(t) is in ``reached``: in how many directions the weights of the first t rows can move, t from 0.
    """
    rest = list(accumulate(reversed(ranks), initial=0))
    return min(inner + outer for inner, outer in zip(reached, reversed(rest), strict=True))


def realisable_dimension(
    heads: SoftmaxMap,
    *,
    rank_tolerance: float = RANK_TOLERANCE,
    memory_limit: int = MEMORY_LIMIT,
) -> RealisableDimension:
    """Return the local dimension of the alternatives that other queries and keys, or other parameters, produce.

    It is the dimension of the kernel of the Jacobian J_F of the outputs of all heads, minus that of the Jacobian J_A
    of the weights (the gauge), both computed numerically: rank J_A − rank J_F. Of queries and keys that move freely the
    change of each query is eliminated first (SVDs of r x d_k); conditions on the keys remain, and there are none for a
    head with d_k >= rank(T). Cost O(n d_k²(n + r)), plus a dense SVD of the conditions. Of parameters the Jacobians are
    dense. A count that differs with another ``rank_tolerance`` is doubtful.

    Args:
        heads: A head (`softmax_map`), or heads that make their logits from the same parameters (`SoftmaxMap`).
        rank_tolerance: Share of the largest singular value below which a singular value counts as zero, of all ranks.
        memory_limit: Bytes that a dense factorisation may take.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import realisable_dimension, softmax_map
        >>> generator = torch.Generator().manual_seed(0)
        >>> queries, keys = torch.randn(2, 12, 4, generator=generator, dtype=torch.float64)
        >>> T = torch.randn(12, 2, generator=generator, dtype=torch.float64)
        >>> found = realisable_dimension(softmax_map(queries, keys, T))
        >>> found.dimension, found.formula
        (52, 52)

    Raises:
        InputError: For a problem too large for ``memory_limit``.
        NumericalError: NaN, or ranks that contradict each other.
    """
    coordinates, start = heads.coordinates, heads.coordinates.start
    limits = (rank_tolerance, memory_limit)
    # Every condition counts, however small the weights it acts on: the rank does not depend on their size.
    conditions, _ = output_conditions(heads, heads.weights(start), row_tolerance=0.0)
    free = weight_conditions(heads)
    weights_rank = coordinates.rank(free, start, *limits)
    jacobian_rank = coordinates.rank(conditions, start, *limits)
    if jacobian_rank > weights_rank:
        raise NumericalError(
            f"expected a Jacobian of the output with at most the rank of the weights', {weights_rank}; got "
            f"{jacobian_rank}; try a larger rank_tolerance."
        )
    formula, counts = head_formula(heads), sorted(heads.visible.sum(-1).tolist())
    if formula is None or coordinates.d_k is None:
        # Normal numbers of the same mean square; of 1 in place of 0.
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(start.shape, generator=generator, dtype=torch.float64).to(start.device)
        size = float(start.square().mean().sqrt()) or 1.0
        generic_rank = coordinates.rank(free, size * drawn, *limits)
    else:
        generic_rank = free_rank(counts, coordinates.d_k)
    return RealisableDimension(
        dimension=weights_rank - jacobian_rank,
        formula=formula,
        parameters=len(start),
        jacobian_rank=jacobian_rank,
        weights_rank=weights_rank,
        regular=weights_rank >= generic_rank,
        tolerance=rank_tolerance,
    )


def head_formula(heads: SoftmaxMap) -> int | None:
    """Return the generic dimension, None if the visible sets are not nested or not any Q and K can be made."""
    d_k, counts = heads.coordinates.d_k, heads.visible.sum(-1)
    ordered = heads.visible[counts.argsort(stable=True)]
    if d_k is None or bool((ordered[:-1] & ~ordered[1:]).any()):
        return None
    return generic_dimension(counts.tolist(), d_k, heads.ranks.tolist())
