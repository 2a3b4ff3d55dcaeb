"""Orthonormal basis and pseudo-inverse of the projected values, by Cholesky where full rank is certified."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.linalg.decompositions import svd
from identilens.linalg.memory import wide
from identilens.linalg.tolerance import FLOAT32_EPS

# Cholesky of a Gram matrix loses half of the digits: its basis is orthonormal to about 1e-16 / SAFE_SHARE.
# Below this share of the trace the singular value decomposition is used instead.
SAFE_SHARE = 1e-8


@dataclass(frozen=True)
class Factor:
    """F⁺ = coordinates @ basisᵀ, for a batch of matrices F (n x r).

    Attributes:
        basis: Orthonormal columns that span those of F; those beyond the rank are zero.
        rank: Numerical rank of each matrix.
        coordinates: r x k, maps a row in the row space of F to its coordinates in ``basis``.
    """

    basis: Float[Tensor, "*shared n k"]
    rank: Int[Tensor, "*batch"]
    coordinates: Float[Tensor, "*batch r k"]

    @property
    def flat(self) -> "Factor":
        """The same with exactly one axis of matrices; bases that some share stay shared."""
        parts = self.basis, self.coordinates
        basis, coordinates = (part.reshape(-1, *part.shape[-2:]) for part in parts)
        return Factor(basis, self.rank.reshape(-1), coordinates)


Tolerance = float | Float[Tensor, " matrix"]


def factorise(matrix: Float[Tensor, "*batch n r"], tolerance: Tolerance) -> Factor:
    """Return basis, pseudo-inverse and rank of each matrix of a batch, in float64.

    Full rank is certified by a Cholesky factorisation of the Gram matrix (see `inverse_cholesky`). For other matrices a
    singular value decomposition is computed, and singular values of at most ``tolerance * σ_max`` count as zero. The
    tolerance is one for all matrices, or one for each. Cost O(n r²) for a certified matrix of n >= r rows.
    """
    (n, r), k = matrix.shape[-2:], min(matrix.shape[-2:])
    flat = matrix.reshape(-1, n, r)
    _, inverse, certified = inverse_cholesky(smaller_gram(flat), tolerance)
    rank = matrix.new_full(flat.shape[:1], k, dtype=torch.int64)
    if n >= r:
        basis, again = _orthonormal(flat @ inverse.mT)
        coordinates = inverse.mT @ again
    else:
        basis = torch.eye(n).to(flat).repeat(len(flat), 1, 1)
        coordinates = (inverse @ flat).mT @ inverse
    if not certified.all():
        rest = ~certified
        left, sigma, right = svd(flat[rest])
        limit = tolerance[rest, None] if isinstance(tolerance, Tensor) else tolerance
        kept = sigma > limit * sigma[:, :1]
        rank[rest] = kept.sum(-1)
        basis[rest] = left * kept[:, None]
        inverses = torch.where(kept, 1 / torch.where(kept, sigma, 1.0), 0.0)
        coordinates[rest] = right.mT * inverses[:, None]
    batch = matrix.shape[:-2]
    parts = (basis, rank, coordinates)
    return Factor(*(part.reshape((*batch, *part.shape[1:])) for part in parts))


def factorise_product(
    values: Float[Tensor, "*shared n r"],
    product: Float[Tensor, "*batch n k"],
    inverse: Float[Tensor, "*#batch k r"],
    tolerance: float,
) -> Factor:
    """Return the factor of F = V L, given V, F and L⁻¹; heads that share V share its basis.

    Where F has full rank, the columns of V span the same space, and F⁺ = L⁻¹ V⁺. Certified is, as in `factorise`, that
    its least singular value is at least 1 / ‖F⁺‖_F; and V by itself, so that its basis is orthonormal. If this is not
    certified of every matrix, F is factorised.
    """
    _, whitener, certified = inverse_cholesky(values.mT @ values, tolerance)
    coordinates = inverse @ whitener.mT
    ratio = squared_norm(coordinates) * squared_norm(product)
    certified = certified & (ratio * least_share(tolerance) < 1)
    if not certified.all():
        return factorise(product, tolerance)
    rank = torch.full_like(certified, values.shape[-1], dtype=torch.int64)
    basis, again = _orthonormal(values @ whitener.mT)
    return Factor(basis, rank, coordinates @ again)


def _orthonormal(
    basis: Float[Tensor, "*batch n r"],
) -> tuple[Float[Tensor, "*batch n r"], Float[Tensor, "*batch r r"]]:
    """Return a nearly orthonormal basis with all digits, by a step of Newton's iteration, and what it is turned by."""
    again = 1.5 * torch.eye(basis.shape[-1]).to(basis) - 0.5 * basis.mT @ basis
    return basis @ again, again


def least_share(tolerance: Any) -> Any:
    """Return the share of the largest eigenvalue that each of a Gram matrix must exceed for a certificate."""
    if isinstance(tolerance, Tensor):
        return tolerance.square().clamp_min(SAFE_SHARE)
    return max(tolerance**2, SAFE_SHARE)


def inverse_cholesky(
    gram: Float[Tensor, "*batch k k"], tolerance: Tolerance
) -> tuple[Float[Tensor, "*batch k k"], Float[Tensor, "*batch k k"], Bool[Tensor, "*batch"]]:
    """Return L and L⁻¹ of each Gram matrix L Lᵀ, and whether its full rank is certified; only then are they used.

    Its eigenvalues are at least the inverse of ‖L⁻¹‖_F², and at most its trace.
    """
    lower, usable = cholesky(gram)
    inverse = inverse_of(lower)
    ratio = squared_norm(inverse) * squared_norm(lower)
    return lower, inverse, usable & (ratio * least_share(tolerance) < 1)


def cholesky(
    gram: Float[Tensor, "*batch k k"],
) -> tuple[Float[Tensor, "*batch k k"], Bool[Tensor, "*batch"]]:
    """Return Cholesky factors, ones where there is none, and where there is one."""
    lower, info = torch.linalg.cholesky_ex(gram)
    usable = info == 0
    # Of the others only the diagonal counts, which must not be zero.
    return lower.masked_fill_(~usable[..., None, None], 1.0), usable


def inverse_of(lower: Float[Tensor, "*batch k k"]) -> Float[Tensor, "*batch k k"]:
    """Return the inverse of each lower triangular matrix."""
    identity = torch.eye(lower.shape[-1]).to(lower)
    return torch.linalg.solve_triangular(lower, identity.expand_as(lower), upper=False)


def squared_norm(matrix: Float[Tensor, "*batch n r"]) -> Float[Tensor, "*batch"]:
    """Return the sum of the squares of each matrix."""
    return torch.linalg.matrix_norm(matrix).square()


def stored_rank(matrix: Float[Tensor, "n r"]) -> int:
    """Return the rank of stored weights: the number of singular values above 8 ε_float32 σ_max.

    Weights are given, not computed: only their own rounding counts as zero, which is far less than what
    `relative_tolerance` allows for values that a model has computed. The trace of the Gram matrix is at least σ_max²:
    full rank is certified by Cholesky where it can be, which takes a tenth of the time of the eigenvalues.
    """
    gram, share = smaller_gram(wide(matrix)), (8 * FLOAT32_EPS) ** 2
    shift = share * gram.trace() * torch.eye(len(gram)).to(gram)
    if torch.linalg.cholesky_ex(gram - shift).info == 0:
        return len(gram)
    squares = torch.linalg.eigvalsh(gram)
    return int((squares > share * squares[-1]).sum())


def smaller_gram(matrix: Float[Tensor, "*batch n r"]) -> Float[Tensor, "*batch k k"]:
    """Return M Mᵀ or Mᵀ M, whichever is smaller."""
    return matrix.mT @ matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix @ matrix.mT
