"""What makes the logits of heads: queries and keys, or any parameters; and the Jacobian of conditions in it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg.decompositions import singular_values, svd
from identilens.linalg.softmax import attention_logits

MEMORY_LIMIT = 2 * 1024**3
"""Default limit of the memory of a dense factorisation, in bytes."""

COPIES = 3
"""A dense factorisation needs memory for its matrix, a copy and a work space."""

_CHUNK = 2**23
"""Entries of the gradients that are computed at once."""


@dataclass(frozen=True)
class Constraints:
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
        queries: Q.
        keys: K.
        scaling: s.
        bias: Position bias, or None.
    """

    queries: Float[Tensor, "row d_k"]
    keys: Float[Tensor, "key d_k"]
    scaling: float
    bias: Float[Tensor, "row key"] | None = None

    @cached_property
    def start(self) -> Float[Tensor, " coordinate"]:
        """Q and K, one after the other."""
        return torch.cat([self.queries.flatten(), self.keys.flatten()])

    @property
    def d_k(self) -> int:
        """Size of a query."""
        return self.queries.shape[1]

    def split(self, point: Float[Tensor, " coordinate"]) -> tuple[Tensor, Tensor]:
        """Return the Q and K of a point."""
        queries, keys = point.split([self.queries.numel(), self.keys.numel()])
        return queries.view_as(self.queries), keys.view_as(self.keys)

    def logits(self, point: Float[Tensor, " coordinate"]) -> Float[Tensor, "row key"]:
        """Return s Q Kᵀ + bias."""
        return attention_logits(*self.split(point), self.scaling, self.bias)

    def gram(
        self, conditions: Constraints, point: Float[Tensor, " coordinate"]
    ) -> Float[Tensor, "p p"]:
        """Return J Jᵀ as products of small Gram matrices; J is never formed."""
        queries, keys = self.split(point)
        rows, owner = conditions.rows, conditions.owner
        felt, owned = rows @ keys, queries[owner]
        gram = rows @ rows.mT
        gram *= owned @ owned.mT
        gram += (owner[:, None] == owner[None, :]) * (felt @ felt.mT)
        gram *= self.scaling**2
        return gram

    def entries(self, conditions: int) -> int:
        """Return the entries of J Jᵀ."""
        return conditions**2

    def rank(
        self,
        conditions: Constraints,
        point: Float[Tensor, " coordinate"],
        tolerance: float,
        memory_limit: int,
    ) -> tuple[int, float]:
        """Return the rank of dS ↦ conditions under dS = dQ Kᵀ + Q dKᵀ, and the gap at the cut.

        Each query's block is [R_i K | R_i ⊗ q_i]. A change of the query reaches col(R_i K). With P_i the complement,
        the rank is Σ rank(R_i K) plus the rank of the stacked P_i R_i ⊗ q_i. Only the column spaces of Q and K matter,
        so orthonormal bases replace them. (The conditions do not depend on constants, so K is centred.)

        Raises:
            InputError: For more conditions on the keys than ``memory_limit`` bytes hold.
        """
        queries, keys = self.split(point)
        queries, gap_q = _column_basis(queries, 0.0, tolerance)
        keys, gap_k = _column_basis(keys, keys.mean(0), tolerance)
        gap = min(gap_q, gap_k)
        blocks = conditions.rows.split(conditions.owner.bincount(minlength=len(queries)).tolist())
        if all(torch.equal(block, blocks[0]) for block in blocks):
            # The same conditions for all queries: the rank of a Kronecker product.
            rank, this = _cut(singular_values(blocks[0] @ keys), tolerance)
            left = (len(blocks[0]) - rank) * queries.shape[1]
            return len(queries) * rank + left, min(gap, this)
        total, rest, owners = 0, [], []
        for index, block in enumerate(blocks):
            left, sigma, _ = svd(block @ keys, full_matrices=True)
            rank, this = _cut(sigma, tolerance)
            total, gap = total + rank, min(gap, this)
            rest.append(left[:, rank:].mT @ block)
            owners += [index] * (len(block) - rank)
        stacked = torch.cat(rest)
        refuse_size(stacked.numel() * queries.shape[1], memory_limit)
        products = stacked[:, :, None] * queries[owners][:, None, :]
        rank, this = jacobian_rank(products.flatten(1), tolerance)
        return total + rank, min(gap, this)


@dataclass(frozen=True)
class Parameters:
    """Parameters that make the logits in any way; their Jacobian is computed by automatic differentiation, dense.

    Attributes:
        logits: The logits of all rows for some parameters, before the mask; finite and differentiable, in float64.
        start: The parameters that give the heads' own attention.
        d_k: No size: parameters need not make any queries and keys.
    """

    logits: Callable[[Float[Tensor, " coordinate"]], Float[Tensor, "row key"]]
    start: Float[Tensor, " coordinate"]
    d_k: None = None

    def jacobian(
        self, conditions: Constraints, point: Float[Tensor, " coordinate"]
    ) -> Float[Tensor, "p coordinate"]:
        """Return what a change of the parameters does to conditions on the change of the logits."""
        with torch.enable_grad():
            point = point.detach().requires_grad_()
            logits = self.logits(point)
        size = max(1, _CHUNK // logits.numel())
        found = [point.new_zeros(0, len(point))]
        for rows, owner in zip(
            conditions.rows.split(size), conditions.owner.split(size), strict=True
        ):
            cotangents = rows.new_zeros(len(rows), *logits.shape)
            cotangents[torch.arange(len(rows)), owner] = rows
            if len(rows):
                found += torch.autograd.grad(
                    logits, point, cotangents, is_grads_batched=True, retain_graph=True
                )
        return torch.cat(found)

    def gram(
        self, conditions: Constraints, point: Float[Tensor, " coordinate"]
    ) -> Float[Tensor, "p p"]:
        """Return J Jᵀ."""
        jacobian = self.jacobian(conditions, point)
        return jacobian @ jacobian.mT

    def entries(self, conditions: int) -> int:
        """Return the entries of J, or of J Jᵀ if these are more."""
        return conditions * max(conditions, len(self.start))

    def rank(
        self,
        conditions: Constraints,
        point: Float[Tensor, " coordinate"],
        tolerance: float,
        memory_limit: int,
    ) -> tuple[int, float]:
        """Return the rank of J by a dense SVD, and the gap at the cut.

        Raises:
            InputError: For a J that needs more than ``memory_limit`` bytes.
        """
        refuse_size(len(conditions.rows) * len(point), memory_limit)
        return jacobian_rank(self.jacobian(conditions, point), tolerance)


Coordinates = QueriesAndKeys | Parameters
"""A point that makes the logits S of heads, as one vector, and the Jacobian J of conditions on dS in the point."""


def refuse_size(entries: int, memory_limit: int) -> None:
    """Raise InputError for a dense factorisation of more bytes than the limit."""
    needed = COPIES * 8 * entries
    if needed > memory_limit:
        raise InputError(
            f"expected a problem within {memory_limit / 2**30:.2f} GiB; this one needs {needed / 2**30:.2f} GiB; "
            "use a shorter text, raise memory_limit, or take the dimension of generic tensors (generic_dimension)."
        )


def jacobian_rank(jacobian: Float[Tensor, "p coordinate"], tolerance: float) -> tuple[int, float]:
    """Return how many singular values exceed this share of the largest, and the ratio across the cut."""
    sigma = singular_values(jacobian)
    return _cut(sigma, tolerance * float(sigma.max())) if sigma.numel() else (0, float("inf"))


def _cut(sigma: Tensor, threshold: float) -> tuple[int, float]:
    rank = int((sigma > threshold).sum())
    if rank in (0, len(sigma)):
        return rank, float("inf")
    return rank, float(sigma[rank - 1] / sigma[rank].clamp_min(1e-300))


def _column_basis(matrix: Tensor, shift: Tensor | float, tolerance: float) -> tuple[Tensor, float]:
    """Return an orthonormal basis of the columns of matrix − shift, and the gap at the cut.

    Relative to the matrix before the shift: equal keys minus their mean are only rounding.
    """
    left, sigma, _ = svd(matrix - shift)
    rank, gap = _cut(sigma, tolerance * float(torch.linalg.matrix_norm(matrix, 2)))
    return left[:, :rank], gap
