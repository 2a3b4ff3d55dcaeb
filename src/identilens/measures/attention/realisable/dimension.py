"""In how many directions a head's queries and keys can change without changing its output."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError, NumericalError
from identilens.linalg import HeadValues
from identilens.linalg.checks import explained
from identilens.linalg.decompositions import singular_values, svd
from identilens.measures.attention.checks import check_numbers
from identilens.measures.attention.realisable.softmax_map import (
    Constraints,
    SoftmaxMap,
    checked_head,
    output_constraints,
    weight_constraints,
)

RANK_TOLERANCE = 1e-12
"""Singular values of a Jacobian below this share of its largest count as zero (float64 arithmetic)."""

MEMORY_LIMIT = 2 * 1024**3
"""Default limit of the memory of a dense factorisation, in bytes."""

COPIES = 3
"""A dense factorisation needs memory for its matrix, a copy and a work space."""


@dataclass(frozen=True)
class RealisableDimension:
    """Local dimension of the alternatives that other queries and keys of the same size produce.

    Attributes:
        dimension: weights_rank − jacobian_rank.
        formula: Dimension for generic queries, keys and values of these sizes and masks; None if the visible sets are
            not nested (sliding windows).
        parameters: Number of entries of Q and K.
        jacobian_rank: Rank of the Jacobian of the output in Q and K.
        weights_rank: Rank of the Jacobian of the weights in Q and K; parameters − weights_rank is the gauge.
        output_rank: Σ_i rank([T, 1]) − 1 over the rows: the largest possible jacobian_rank.
        gap: Least ratio between the smallest singular value that counts and the next one; infinite if every singular
            value counts. Ranks with a gap near 1 are doubtful.
        regular: Whether the Jacobian of the weights has the rank that it has for generic Q and K (these have full rank,
            K less its mean), or for generic parameters that make them. If not, more weights can be reached at second
            order, and the dimension is only that of first order.
        tolerance: Share of the largest singular value below which a singular value counts as zero.
    """

    dimension: int
    formula: int | None
    parameters: int
    jacobian_rank: int
    weights_rank: int
    output_rank: int
    gap: float
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

    @property
    def smooth(self) -> bool:
        """Whether the Jacobian has full row rank, so that nearby alternatives form a manifold of this dimension.

        If not, and the dimension is positive, the dimension is an upper bound.
        """
        return self.jacobian_rank == self.output_rank


@explained
def realisable_formula(n: int, d_k: int, rank: int) -> int:
    """Return max(0, n (2 d_k − r) − d_k² − d_k): the generic dimension for a long bidirectional text.

    Valid for d_k <= n − 1 and r = rank([T, 1]) − 1. r is rank(T) unless T's columns span the constant vector (never for
    generic T with n > r). For other cases use ``generic_dimension``.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import realisable_formula
        >>> realisable_formula(128, 64, 64)
        4032
        >>> realisable_formula(20, 64, 20)
        0

    Raises:
        InputError: Numbers that are not whole, n or d_k below 1, a rank below 0.
    """
    check_numbers(1, n=n, d_k=d_k)
    check_numbers(0, rank=rank)
    return max(0, n * (2 * d_k - rank) - d_k * d_k - d_k)


@explained
def generic_dimension(counts: list[int], d_k: int, ranks: list[int]) -> int:
    """Return the generic dimension for rows with nested visible sets (bidirectional, causal, prefix, cross).

    With m_1 <= … <= m_n visible keys, the weights of the first t rows form a manifold of dimension
    W(t) = Σ_{i <= t} w_i, where w_i = m_i − 1 for the last d_k of those rows and min(d_k, m_i − 1) for the
    others. The output's Jacobian has rank min over t of W(t) + Σ_{i > t} r_i: the first t rows are
    identified, the others meet their r_i conditions. The dimension is W(n) minus that rank.
    The ``counts`` m_i can be in any order. The ``ranks`` r_i = rank([T, 1]) − 1 over the row's visible keys must be in
    the same order.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import generic_dimension
        >>> generic_dimension([40] * 40, 8, [4] * 40)
        408

    Raises:
        InputError: No lists of one length, numbers that are not whole, a rank that its count of keys does not allow.
    """
    if not type(counts) is type(ranks) is list or len(counts) != len(ranks):
        raise InputError(
            f"expected counts and ranks as lists of one length; got {counts!r} and {ranks!r}; pass tensor.tolist()."
        )
    check_numbers(1, d_k=d_k)
    for count, rank in zip(counts, ranks, strict=True):
        check_numbers(0, rank=rank)
        check_numbers(rank + 1, count=count)
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


@explained
def realisable_dimension(
    queries: Float[Tensor, "query d_k"],
    keys: Float[Tensor, "key d_k"],
    projected_values: HeadValues,
    *,
    scaling: float | None = None,
    visible: Bool[Tensor, "query key"] | None = None,
    bias: Float[Tensor, "query key"] | None = None,
    rank_tolerance: float = RANK_TOLERANCE,
    memory_limit: int = MEMORY_LIMIT,
) -> RealisableDimension:
    """Return the local dimension of the alternatives that other Q, K produce.

    It is the dimension of the kernel of the Jacobian of F(Q, K) = softmax(s Q Kᵀ) T, minus that of the Jacobian of the
    weights (the true gauge), both computed numerically: rank J_A − rank J_F. The change of each query is eliminated
    first (SVDs of r x d_k). Conditions on the keys remain; there are none for a head with d_k >= rank(T). Cost
    O(n d_k²(n + r)), plus a dense SVD of the conditions, limited to ``memory_limit`` bytes. ``rank_tolerance`` is used
    for the ranks of the Jacobians, Q and K. The arguments of the head are those of `checked_head`.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import realisable_dimension
        >>> generator = torch.Generator().manual_seed(0)
        >>> queries, keys = torch.randn(2, 12, 4, generator=generator, dtype=torch.float64)
        >>> T = torch.randn(12, 2, generator=generator, dtype=torch.float64)
        >>> found = realisable_dimension(queries, keys, T)
        >>> found.dimension, found.formula
        (52, 52)

    Raises:
        InputError: Tensors that do not belong together, or a problem too large for ``memory_limit``.
        NumericalError: NaN, or ranks that contradict each other.
    """
    given = checked_head(queries, keys, projected_values, scaling, visible, bias)
    formula = head_formula(given)
    weights = given.weights(given.queries, given.keys)
    # Every condition counts, however small the weights it acts on: the rank does not depend on their size.
    conditions, _ = output_constraints(given, weights, row_tolerance=0.0)
    (n_q, d_k), n_k = given.queries.shape, len(given.keys)
    span_q, gap_q = _column_basis(given.queries, 0.0, rank_tolerance)
    span_k, gap_k = _column_basis(given.keys, given.keys.mean(0), rank_tolerance)
    jacobian_rank, gap = _rank((span_q, span_k), conditions, rank_tolerance, memory_limit, formula)
    weights_rank, gap_a = _weights_rank(
        given, (span_q, span_k), min(gap_q, gap_k), rank_tolerance, memory_limit
    )
    if jacobian_rank > weights_rank:
        raise NumericalError(
            f"expected a Jacobian of the output with at most the rank of the weights', {weights_rank}; got "
            f"{jacobian_rank}, with a gap of {min(gap, gap_a):.1e} at the cut; try a larger rank_tolerance."
        )
    return RealisableDimension(
        dimension=weights_rank - jacobian_rank,
        formula=formula,
        parameters=(n_q + n_k) * d_k,
        jacobian_rank=jacobian_rank,
        weights_rank=weights_rank,
        output_rank=sum(basis.shape[1] for basis in given.kept),
        gap=min(gap, gap_a),
        regular=span_q.shape[1] == min(d_k, n_q) and span_k.shape[1] == min(d_k, n_k - 1),
        tolerance=rank_tolerance,
    )


def refuse_size(needed: int, memory_limit: int, formula: int | None) -> None:
    """Raise for a dense factorisation of more bytes than the limit; the message has the formula's dimension."""
    if needed > memory_limit:
        known = (
            "no formula covers this mask"
            if formula is None
            else f"for generic tensors the dimension is {formula}"
        )
        raise InputError(
            f"expected a problem within {memory_limit / 2**30:.2f} GiB; this one needs {needed / 2**30:.2f} GiB; "
            f"{known}; use a shorter text or raise memory_limit."
        )


def head_formula(given: SoftmaxMap) -> int | None:
    """Return the generic dimension of a head of these sizes and masks, None if the visible sets are not nested."""
    if not nested(given.visible):
        return None
    counts, ranks = given.visible.sum(-1).tolist(), [basis.shape[1] for basis in given.kept]
    return generic_dimension(counts, given.queries.shape[1], ranks)


def nested(visible: Bool[Tensor, "query key"]) -> bool:
    """Return whether of any two rows one sees all keys that the other sees."""
    ordered = visible[torch.argsort(visible.sum(-1), stable=True)]
    return not bool((ordered[:-1] & ~ordered[1:]).any())


def _column_basis(matrix: Tensor, shift: Tensor | float, tolerance: float) -> tuple[Tensor, float]:
    """Return an orthonormal basis of the columns of matrix − shift, and the gap at the cut.

    Relative to the matrix before the shift: equal keys minus their mean are only rounding.
    """
    left, sigma, _ = svd(matrix - shift)
    rank, gap = cut_rank(sigma, tolerance * float(torch.linalg.matrix_norm(matrix, 2)))
    return left[:, :rank], gap


def _rank(
    spans: tuple[Tensor, Tensor],
    conditions: Constraints,
    tolerance: float,
    memory_limit: int,
    formula: int | None,
) -> tuple[int, float]:
    """Return the rank of dS ↦ conditions under dS = dQ Kᵀ + Q dKᵀ, and the gap at the cut.

    Each query's block is [R_i K | R_i ⊗ q_i]. A change of the query reaches col(R_i K). With P_i the complement, the
    rank is Σ rank(R_i K) plus the rank of the stacked P_i R_i ⊗ q_i. Only the column spaces of Q and K matter, so
    orthonormal bases replace them. (The conditions do not depend on constants, so K may be centred.)
    """
    queries, keys = spans
    felt = conditions.rows @ keys
    total, gap, rest, owners = 0, float("inf"), [], []
    for index in range(len(queries)):
        own = conditions.owner == index
        left, sigma, _ = svd(felt[own], full_matrices=True)
        rank, this = cut_rank(sigma, tolerance)
        total, gap = total + rank, min(gap, this)
        if rank < left.shape[0]:
            rest.append(left[:, rank:].mT @ conditions.rows[own])
            owners.append(torch.full((left.shape[0] - rank,), index, device=felt.device))
    if not rest or not queries.shape[1]:
        return total, gap
    stacked, owner = torch.cat(rest), torch.cat(owners)
    refuse_size(COPIES * 8 * stacked.shape[0] * len(keys) * queries.shape[1], memory_limit, formula)
    sigma = singular_values(
        (stacked[:, :, None] * queries[owner][:, None, :]).reshape(len(stacked), -1)
    )
    rank, this = cut_rank(sigma, tolerance * float(sigma.max()))
    return total + rank, min(gap, this)


def _weights_rank(
    given: SoftmaxMap, spans: tuple[Tensor, Tensor], gap: float, tolerance: float, memory_limit: int
) -> tuple[int, float]:
    """Return the rank of the weights' Jacobian in Q and K, and the gap at the cut (as given if spans are enough)."""
    if not (given.shared and bool(given.visible.all())):
        return _rank(spans, weight_constraints(given), tolerance, memory_limit, head_formula(given))
    # Tangent space {X K_cᵀ + Q Yᵀ, Y ⊥ 1}.
    rank_q, rank_k = (span.shape[1] for span in spans)
    return len(given.queries) * rank_k + rank_q * (len(given.keys) - 1) - rank_q * rank_k, gap


def cut_rank(sigma: Tensor, threshold: float) -> tuple[int, float]:
    """Return how many singular values exceed the threshold and the ratio across the cut."""
    rank = int((sigma > threshold).sum())
    if rank in (0, len(sigma)):
        return rank, float("inf")
    return rank, float(sigma[rank - 1] / sigma[rank].clamp_min(1e-300))
