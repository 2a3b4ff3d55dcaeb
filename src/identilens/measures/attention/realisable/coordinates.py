"""Queries and keys that make the logits of heads, and the Jacobian of conditions in them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg.decompositions import singular_values, svd
from identilens.linalg.softmax import attention_logits

MEMORY_LIMIT = 2 * 1024**3
"""Bytes that a dense factorisation may take: its matrix, a copy and a work space."""

RANK_TOLERANCE = 1e-12
"""Singular values of a Jacobian below this share of its largest count as zero (float64 arithmetic)."""

Point = Float[Tensor, " coordinate"]
"""A point: the numbers that move."""


@dataclass(frozen=True)
class Conditions:
    """Linear conditions on the change of the logits, one per row of ``rows``: rows[p] · dS[owner[p]] = given.

    Attributes:
        rows: Orthonormal within each query; a change keeps the output when all products are zero.
        owner: The query each condition belongs to.
    """

    rows: Float[Tensor, "p key"]
    owner: Int[Tensor, " p"]


@dataclass(frozen=True)
class QueriesAndKeys:
    """Queries and keys that move freely: S = s Q Kᵀ + bias, for one head or several that share K, stacked.

    Attributes:
        start: Q and K, one after the other.
        rows: Number of queries.
        d_k: Size of a query.
        scaling: s.
        bias: Position bias, or None.
    """

    start: Point
    rows: int
    d_k: int
    scaling: float
    bias: Float[Tensor, "row key"] | None = None

    def split(self, point: Point) -> Sequence[Tensor]:
        """Return the Q and K of a point."""
        return point.view(-1, self.d_k).tensor_split([self.rows])

    def logits(self, point: Point) -> Float[Tensor, "row key"]:
        """Return s Q Kᵀ + bias."""
        queries, keys = self.split(point)
        return attention_logits(queries, keys, self.scaling, self.bias)

    def gram(self, conditions: Conditions, point: Point) -> Float[Tensor, "p p"]:
        """Return J Jᵀ as products of small Gram matrices; J is never formed."""
        queries, keys = self.split(point)
        rows, owner = conditions.rows, conditions.owner
        refuse_size(len(rows) ** 2)
        felt, owned = rows @ keys, queries[owner]
        gram = rows @ rows.mT
        gram *= owned @ owned.mT
        gram += (owner[:, None] == owner) * (felt @ felt.mT)
        return gram.mul_(self.scaling**2)

    def rank(self, conditions: Conditions, point: Point) -> int:
        """Return the rank of dS ↦ conditions under dS = dQ Kᵀ + Q dKᵀ.

        Each query's block is [R_i K | R_i ⊗ q_i]. A change of the query reaches col(R_i K). With P_i the complement,
        the rank is Σ rank(R_i K) plus the rank of the stacked P_i R_i ⊗ q_i. Only the column spaces of Q and K matter,
        so orthonormal bases replace them. (The conditions do not depend on constants, so K is centred.)
        """
        queries, keys = self.split(point)
        queries, keys = _column_basis(queries, 0.0), _column_basis(keys, keys.mean(0))
        parts = conditions.rows.split(conditions.owner.bincount(minlength=len(queries)).tolist())
        if all(torch.equal(part, parts[0]) for part in parts):
            # The same conditions for all queries: the rank of a Kronecker product.
            rank = int((singular_values(parts[0] @ keys) > RANK_TOLERANCE).sum())
            return len(queries) * rank + (len(parts[0]) - rank) * queries.shape[1]
        rest = []
        for part in parts:
            left, sigma, _ = svd(part @ keys, full_matrices=True)
            rest.append(left[:, int((sigma > RANK_TOLERANCE).sum()) :].mT @ part)
        left_over = sum(map(len, rest))
        refuse_size(left_over * keys.shape[0] * queries.shape[1])
        products = [torch.einsum("ij,k->ijk", *pair) for pair in zip(rest, queries, strict=True)]
        return len(conditions.rows) - left_over + jacobian_rank(torch.cat(products).flatten(1))


def refuse_size(entries: int) -> None:
    """Raise for a dense factorisation of more memory than the limit.

    Raises:
        InputError: Always then, with the memory that it needs.
    """
    if 24 * entries > MEMORY_LIMIT:
        raise InputError(
            f"expected a problem of less memory; this one needs {24 * entries / 2**30:.2f} GiB; use a shorter text, "
            "or take the dimension of generic tensors (generic_dimension)."
        )


def jacobian_rank(J: Float[Tensor, "p coordinate"]) -> int:
    """Return how many singular values exceed the tolerance's share of the largest."""
    sigma = singular_values(J)
    return int((sigma > RANK_TOLERANCE * sigma[:1]).sum())


def _column_basis(matrix: Tensor, shift: Tensor | float) -> Tensor:
    """Return an orthonormal basis of the columns of matrix − shift.

    Relative to the matrix before the shift: equal keys minus their mean are only rounding.
    """
    left, sigma, _ = svd(matrix - shift)
    return left[:, sigma > RANK_TOLERANCE * torch.linalg.matrix_norm(matrix, 2)]
