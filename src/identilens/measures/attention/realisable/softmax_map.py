"""A = softmax(S(point)) of one head or several: what keeps the outputs A C, and in how many directions A can change."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import add

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from identilens.errors import NumericalError
from identilens.linalg import HeadValues, head_values
from identilens.linalg.checks import check_finite, check_mask
from identilens.linalg.decompositions import svd
from identilens.linalg.softmax import visible_softmax
from identilens.measures.attention.realisable.coordinates import (
    Conditions,
    QueriesAndKeys,
)

ROW_TOLERANCE = 1e-10
"""Singular values of one row's softmax Jacobian below this share of the row's largest are left out."""


@dataclass(frozen=True)
class SoftmaxMap:
    """Attention as a function of a point that makes its logits, on one text; the rows of several heads are stacked.

    Attributes:
        coordinates: The queries and keys of the heads themselves, and the logits of any others.
        visible: True where a row sees a key.
        kept: C_i of each row: orthonormal basis of the columns of its head's T minus their mean over the visible keys.
            Rows that see the same keys share one tensor.
        rows: The rows of the head that is looked at.
    """

    coordinates: QueriesAndKeys
    visible: Bool[Tensor, "row key"]
    kept: tuple[Tensor, ...]
    rows: slice

    @torch.no_grad()
    def weights(self, point: Float[Tensor, " coordinate"]) -> Float[Tensor, "row key"]:
        """Return the attention of a point."""
        return visible_softmax(self.coordinates.logits(point), self.visible)

    @cached_property
    def bases(self) -> Float[Tensor, "row key r"]:
        """C of all rows, with zeros after their columns."""
        return pad_sequence([basis.mT for basis in self.kept], batch_first=True).mT

    @cached_property
    def ranks(self) -> Int[Tensor, " row"]:
        """Number of columns of each row's C."""
        return torch.tensor([basis.shape[1] for basis in self.kept], device=self.visible.device)

    def outputs(self, weights: Float[Tensor, "row key"]) -> Float[Tensor, "row r"]:
        """Return a C of each row a of some weights, or of their difference from others."""
        return (weights[:, None, :] @ self.bases)[:, 0]


def softmax_map(
    queries: Float[Tensor, "query d_k"],
    keys: Float[Tensor, "key d_k"],
    projected_values: HeadValues,
    scaling: float | None = None,
    visible: Bool[Tensor, "query key"] | None = None,
    bias: Float[Tensor, "query key"] | None = None,
) -> SoftmaxMap:
    """Return the attention of one head as a function of its queries and keys.

    Args:
        queries: Q, as they enter the dot product (after any rotation).
        keys: K, in the same form.
        projected_values: T.
        scaling: Factor of the dot product; 1 / sqrt(d_k) by default.
        visible: True where a query sees a key; every key by default.
        bias: Position bias added to the logits. Give masks as ``visible``, not as -inf here.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import softmax_map
        >>> queries, keys, T = torch.eye(3), torch.eye(3), torch.ones(3, 2)
        >>> head = softmax_map(queries, keys, T)
        >>> head.weights(head.coordinates.start).shape
        torch.Size([3, 3])

    Raises:
        InputError: A mask of another shape.
        NumericalError: Numbers that are not finite.
    """
    T = head_values(projected_values)
    check_finite(queries=queries, keys=keys, bias=bias)
    n_q, d_k = queries.shape
    check_mask(visible, n_q, T.keys)
    vectors = torch.cat([queries.flatten(), keys.flatten()])
    coordinates = QueriesAndKeys(
        vectors.detach().double(),
        n_q,
        d_k,
        d_k**-0.5 if scaling is None else float(scaling),
        None if bias is None else bias.detach().double(),
    )
    mask = torch.ones_like(queries @ keys.mT, dtype=torch.bool) if visible is None else visible
    return SoftmaxMap(coordinates, mask, T.output_bases(n_q, visible), slice(None))


def output_conditions(
    heads: SoftmaxMap, weights: Float[Tensor, "row key"], row_tolerance: float = ROW_TOLERANCE
) -> tuple[Conditions, Float[Tensor, "p r"]]:
    """Return the conditions M_i dS_i = 0 with orthonormal rows, and what each needs for a change of the output.

    M_i = C_iᵀ (diag(a_i) − a_i a_iᵀ) maps logits to the row's output, M_iᵀ = Q R: the conditions are the rows of Qᵀ,
    and a change e of the output needs Qᵀ dS = R⁻ᵀ e. The keys are sorted by weight before the QR. Householder's method
    is then accurate for every key relative to its weight (Cox & Higham 1998). So the spans are exact for slightly
    different values, and weights of very different size do not disturb the ranks. Directions with singular values up to
    ``row_tolerance`` of the row's largest are left out: their weights are too small to have an effect. With a tolerance
    of 0 only exact zeros are left out.
    """
    mean = heads.outputs(weights)
    jacobians = (heads.bases - mean[:, None, :]) * weights[:, :, None]
    # Σ_j a_j (C_j − mean) = 0. At a key with nearly all the weight the difference cancels; the sum does not.
    rows, top = torch.arange(len(weights), device=weights.device), weights.argmax(-1)
    jacobians[rows, top] = 0.0
    jacobians[rows, top] = -jacobians.sum(1)
    order = weights.argsort(-1, descending=True)[:, :, None].expand_as(jacobians)
    basis, triangle = torch.linalg.qr(jacobians.gather(1, order))
    left, sigma, right = svd(triangle)
    felt = (sigma > row_tolerance * sigma[:, :1]) & (sigma > (1e-14 if row_tolerance else 0.0))
    felt &= torch.arange(sigma.shape[1], device=felt.device) < heads.ranks[:, None]
    spans = torch.zeros_like(basis).scatter_(1, order, basis) @ left
    conditions = Conditions(spans.mT[felt], felt.nonzero()[:, 0])
    return conditions, right[felt] / sigma[felt][:, None]


def weight_conditions(heads: SoftmaxMap) -> Conditions:
    """Return the conditions "dS_i is constant over the visible keys": no weight changes."""
    n_q, n_k = heads.visible.shape
    every = head_values(torch.eye(n_k, dtype=torch.float64, device=heads.visible.device))
    rows = torch.cat([basis.mT for basis in every.output_bases(n_q, heads.visible)])
    counts = heads.visible.sum(-1) - 1
    return Conditions(rows, torch.arange(n_q, device=rows.device).repeat_interleave(counts))


@dataclass(frozen=True)
class RealisableDimension:
    """Local dimension of the alternatives that other queries and keys of the same size produce.

    An upper bound, if jacobian_rank is less than the number of conditions (Σ_i rank([T, 1]) − 1 over the rows).

    Attributes:
        dimension: weights_rank − jacobian_rank.
        formula: Dimension for generic queries, keys and values of these sizes and masks; None if the visible sets are
            not nested (sliding windows).
        parameters: Number of entries of Q and K.
        jacobian_rank: Rank of the Jacobian of the output in these.
        weights_rank: Rank of the Jacobian of the weights in these; parameters − weights_rank is the gauge, the
            dimension of the changes that change no weight: d_k² + d_k of generic Q and K.
        regular: Whether the Jacobian of the weights has the rank that it has for generic Q and K. If not, more weights
            can be reached at second order, and the dimension is only that of first order.
    """

    dimension: int
    formula: int | None
    parameters: int
    jacobian_rank: int
    weights_rank: int
    regular: bool


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
    """
    rows = sorted(zip(counts, ranks, strict=True))
    free, reached = [count - 1 for count, _ in rows], []
    for t in range(len(rows) + 1):
        split = max(0, t - d_k)
        reached.append(sum(min(d_k, size) for size in free[:split]) + sum(free[split:t]))
    rest = list(accumulate((rank for _, rank in reversed(rows)), initial=0))
    return reached[-1] - min(map(add, reached, reversed(rest)))


def realisable_dimension(heads: SoftmaxMap) -> RealisableDimension:
    """Return the local dimension of the alternatives that other queries and keys produce.

    It is the dimension of the kernel of the Jacobian J_F of the outputs of all heads, minus that of the Jacobian J_A
    of the weights (the gauge), both computed numerically: rank J_A − rank J_F. The change of each query is eliminated
    first (SVDs of r x d_k); conditions on the keys remain, and there are none for a head with d_k >= rank(T). Cost
    O(n d_k²(n + r)), plus a dense SVD of the conditions. A singular value below 1e-12 of the largest counts as zero.
    The heads are one (`softmax_map`), or several that share keys (`SoftmaxMap`).

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
        InputError: For a problem of more than 2 GiB.
        NumericalError: NaN, or ranks that contradict each other.
    """
    coordinates, start = heads.coordinates, heads.coordinates.start
    # Every condition counts, however small the weights it acts on: the rank does not depend on their size.
    conditions, _ = output_conditions(heads, heads.weights(start), row_tolerance=0.0)
    free = weight_conditions(heads)
    weights_rank = coordinates.rank(free, start)
    jacobian_rank = coordinates.rank(conditions, start)
    if jacobian_rank > weights_rank:
        raise NumericalError(
            f"expected a Jacobian of the output with at most the rank of the weights', {weights_rank}; got "
            f"{jacobian_rank}; the weights differ too much in size for a count."
        )
    # Normal numbers of the same mean square; of 1 in place of 0.
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(start.shape, generator=generator, dtype=torch.float64).to(start.device)
    generic = (float(start.square().mean().sqrt()) or 1.0) * drawn
    return RealisableDimension(
        dimension=weights_rank - jacobian_rank,
        formula=head_formula(heads),
        parameters=len(start),
        jacobian_rank=jacobian_rank,
        weights_rank=weights_rank,
        regular=weights_rank >= coordinates.rank(free, generic),
    )


def head_formula(heads: SoftmaxMap) -> int | None:
    """Return the generic dimension, None if the visible sets are not nested."""
    counts = heads.visible.sum(-1)
    ordered = heads.visible[counts.argsort(stable=True)]
    nested = not bool((ordered[:-1] & ~ordered[1:]).any())
    if not nested:
        return None
    return generic_dimension(counts.tolist(), heads.coordinates.d_k, heads.ranks.tolist())
