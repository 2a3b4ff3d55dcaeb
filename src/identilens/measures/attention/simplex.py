"""The space of alternatives on the simplex, row by row: LN([T, 1]) and how far one can go in it."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import relative_tolerance
from identilens.measures.attention.checks import check_values

ROUNDING = 1e-12
"""Entries of an orthonormal basis below this are rounding: the key takes no part in any alternative."""


@dataclass(frozen=True)
class SimplexSpace:
    """What a row may change, and what it must keep.

    Attributes:
        kept: B, orthonormal columns that span [T, 1] on the visible keys; zero rows on hidden keys.
            The first column is constant.
        free: N, orthonormal basis of LN([T, 1]) on the visible keys; zero rows elsewhere.
        visible: True on the keys the row may use.
        tolerance: Share of σ_max(T) below which a direction of T counts as zero.
    """

    kept: Float[Tensor, "key rho"]
    free: Float[Tensor, "key nullity"]
    visible: Bool[Tensor, " key"]
    tolerance: float

    @property
    def rank(self) -> int:
        """Numerical rank of [T, 1] on the visible keys."""
        return self.kept.shape[1]

    @property
    def nullity(self) -> int:
        """Simplex nullity: dimension of LN([T, 1]) on the visible keys."""
        return self.free.shape[1]


def simplex_space(
    projected_values: Float[Tensor, "key d"],
    visible: Bool[Tensor, " key"] | None = None,
    tolerance: float | None = None,
) -> SimplexSpace:
    """Return LN([T, 1]) of one row and the complement which it must keep.

    rank([T, 1]) = 1 + rank of T with its column means taken off (over the visible keys), so that the
    sum of the weights is kept exactly, however T is scaled (Brunner et al. 2020, Eq. 7; Bhardwaj et al.
    2021, P2 and P3). Cost O(n² d).

    Args:
        projected_values: T, or any matrix with the same inner products of rows (``compact_values``).
        visible: True on the keys the row may use (S_i); all when left out.
        tolerance: Singular values up to this share of σ_max(T) count as zero; by default
            ``relative_tolerance`` of T's shape. Give it when T comes in a compact basis.

    Raises:
        InputError: Values that are not finite, or no visible key.
    """
    check_values(projected_values)
    keys, columns = projected_values.shape
    tolerance = relative_tolerance(keys, columns) if tolerance is None else tolerance
    seen = torch.ones(keys, dtype=torch.bool, device=projected_values.device) if visible is None else visible
    if seen.shape[0] != keys or not seen.any():
        raise InputError(
            f"expected a mask over {keys} keys with at least one visible; got {seen.shape[0]} keys, "
            f"{int(seen.sum())} visible; pass the row of the mask with which the weights were computed."
        )
    rows = projected_values.detach().double()[seen]
    count = rows.shape[0]
    scale = torch.linalg.matrix_norm(rows, 2)
    left, sigma, _ = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
    left = left[:, sigma > tolerance * scale]
    constant = torch.full((count, 1), count**-0.5, dtype=rows.dtype, device=rows.device)
    # QR once more: the columns of `left` are off 1 only to rounding relative to their singular value.
    full = torch.linalg.qr(torch.cat([constant, left], 1), mode="complete").Q
    rank = 1 + left.shape[1]
    free = full[:, rank:]
    free = free * (torch.linalg.vector_norm(free, dim=1, keepdim=True) > ROUNDING)
    return SimplexSpace(
        kept=_spread(full[:, :rank], seen), free=_spread(free, seen), visible=seen, tolerance=float(tolerance)
    )


def row_spaces(
    projected_values: Float[Tensor, "key d"],
    queries: int,
    visible: Bool[Tensor, "query key"] | None = None,
    tolerance: float | None = None,
) -> list[SimplexSpace]:
    """Return the space of every row; rows that see the same keys share one object.

    Args:
        projected_values: T.
        queries: Number of rows.
        visible: True where a query may see a key; everything when left out.
        tolerance: See ``simplex_space``.
    """
    if visible is None:
        return [simplex_space(projected_values, None, tolerance)] * queries
    known: dict[bytes, SimplexSpace] = {}
    spaces = []
    for row in visible:
        name = row.cpu().numpy().tobytes()
        if name not in known:
            known[name] = simplex_space(projected_values, row, tolerance)
        spaces.append(known[name])
    return spaces


def largest_step(weights: Float[Tensor, "*rows key"], direction: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows"]:
    """Return λ_max, how far each row may go along its direction before a weight turns negative.

    λ_max = min over ã_i < 0 of −a_i / ã_i (Brunner et al. 2020, 3.3). Zero for a zero direction, infinite
    for one without negative entries (never the case in LN([T, 1])). On a one-hot row λ_max is zero
    unless the direction's only negative entry is at the hot key.

    Args:
        weights: a.
        direction: ã.
    """
    negative = direction < 0
    ratio = torch.where(negative, -weights / torch.where(negative, direction, -1.0), torch.inf)
    step = ratio.amin(-1)
    return torch.where((direction == 0).all(-1), torch.zeros_like(step), step)


def total_variation(
    weights: Float[Tensor, "*#rows key"], alternative: Float[Tensor, "*#rows key"]
) -> Float[Tensor, "*broadcast"]:
    """Return ½ Σ |a'_j − a_j| for each row, in [0, 1].

    Args:
        weights: a.
        alternative: a'.
    """
    return (alternative - weights).abs().sum(-1) / 2


def _spread(columns: Float[Tensor, "seen k"], seen: Bool[Tensor, " key"]) -> Float[Tensor, "key k"]:
    whole = columns.new_zeros((seen.shape[0], columns.shape[1]))
    whole[seen] = columns
    return whole
