"""What makes the logits of heads: queries and keys, or any parameters; and the Jacobian of conditions in it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg.decompositions import singular_values, svd
from identilens.linalg.memory import blocks
from identilens.linalg.softmax import attention_logits

MEMORY_LIMIT = 2 * 1024**3
"""Default limit of the memory of a dense factorisation, in bytes."""

COPIES = 3
"""A dense factorisation needs memory for its matrix, a copy and a work space."""

_CHUNK = 2**23
"""Entries of the gradients that are computed at once."""


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
        vectors = point.view(-1, self.d_k)
        return vectors[: len(self.queries)], vectors[len(self.queries) :]

    def logits(self, point: Float[Tensor, " coordinate"]) -> Float[Tensor, "row key"]:
        """Return s Q Kᵀ + bias."""
        return attention_logits(*self.split(point), self.scaling, self.bias)

    def gram(
        self, conditions: Conditions, point: Float[Tensor, " coordinate"]
    ) -> Float[Tensor, "p p"]:
        """Return J Jᵀ as products of small Gram matrices; J is never formed."""
        queries, keys = self.split(point)
        rows, owner = conditions.rows, conditions.owner
        felt, owned = rows @ keys, queries[owner]
        gram = rows @ rows.mT
        gram *= owned @ owned.mT
        gram += (owner[:, None] == owner) * (felt @ felt.mT)
        return gram.mul_(self.scaling**2)

    def rank(
        self,
        conditions: Conditions,
        point: Float[Tensor, " coordinate"],
        tolerance: float,
        memory_limit: int,
    ) -> int:
        """Return the rank of dS ↦ conditions under dS = dQ Kᵀ + Q dKᵀ.

        Each query's block is [R_i K | R_i ⊗ q_i]. A change of the query reaches col(R_i K). With P_i the complement,
        the rank is Σ rank(R_i K) plus the rank of the stacked P_i R_i ⊗ q_i. Only the column spaces of Q and K matter,
        so orthonormal bases replace them. (The conditions do not depend on constants, so K is centred.)
        """
        queries, keys = self.split(point)
        queries = _column_basis(queries, 0.0, tolerance)
        keys = _column_basis(keys, keys.mean(0), tolerance)
        parts = conditions.rows.split(conditions.owner.bincount(minlength=len(queries)).tolist())
        if all(torch.equal(part, parts[0]) for part in parts):
            # The same conditions for all queries: the rank of a Kronecker product.
            rank = _above(singular_values(parts[0] @ keys), tolerance)
            return len(queries) * rank + (len(parts[0]) - rank) * queries.shape[1]
        total, rest, left_over = 0, [], []
        for part in parts:
            left, sigma, _ = svd(part @ keys, full_matrices=True)
            rank = _above(sigma, tolerance)
            total += rank
            rest.append(left[:, rank:].mT @ part)
            left_over.append(len(part) - rank)
        stacked = torch.cat(rest)
        refuse_size(stacked.numel() * queries.shape[1], memory_limit)
        owners = torch.tensor(left_over, device=queries.device)
        products = stacked[:, :, None] * queries.repeat_interleave(owners, 0)[:, None, :]
        return total + jacobian_rank(products.flatten(1), tolerance)


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
        self, conditions: Conditions, point: Float[Tensor, " coordinate"]
    ) -> Float[Tensor, "p coordinate"]:
        """Return J: what a change of the parameters does to conditions on the change of the logits."""
        with torch.enable_grad():
            point = point.detach().requires_grad_()
            logits = self.logits(point)
        parts = [point.new_zeros(0, len(point))]
        for step in blocks(len(conditions.rows), 8 * logits.numel(), logits.device):
            rows, owner = conditions.rows[step], conditions.owner[step]
            cotangents = rows.new_zeros(len(rows), *logits.shape)
            cotangents[torch.arange(len(rows)), owner] = rows
            parts += torch.autograd.grad(
                logits, point, cotangents, is_grads_batched=True, retain_graph=True
            )
        return torch.cat(parts)

    def gram(
        self, conditions: Conditions, point: Float[Tensor, " coordinate"]
    ) -> Float[Tensor, "p p"]:
        """Return J Jᵀ."""
        jacobian = self.jacobian(conditions, point)
        return jacobian @ jacobian.mT

    def rank(
        self,
        conditions: Conditions,
        point: Float[Tensor, " coordinate"],
        tolerance: float,
        memory_limit: int,
    ) -> int:
        """Return the rank of J by a dense decomposition."""
        refuse_size(len(conditions.rows) * len(point), memory_limit)
        return jacobian_rank(self.jacobian(conditions, point), tolerance)


Coordinates = QueriesAndKeys | Parameters
"""A point that makes the logits S of heads, as one vector, and the Jacobian J of conditions on dS in the point."""


def refuse_size(entries: int, memory_limit: int) -> None:
    """Raise for a dense factorisation of more memory than the limit.

    Raises:
        InputError: Always then, with the memory that it needs.
    """
    needed = COPIES * 8 * entries
    if needed > memory_limit:
        raise InputError(
            f"expected a problem within {memory_limit / 2**30:.2f} GiB; this one needs {needed / 2**30:.2f} GiB; "
            "use a shorter text, raise memory_limit, or take the dimension of generic tensors (generic_dimension)."
        )


def jacobian_rank(jacobian: Float[Tensor, "p coordinate"], tolerance: float) -> int:
    """Return how many singular values exceed this share of the largest."""
    sigma = singular_values(jacobian)
    return _above(sigma, tolerance * sigma[:1])


def _above(sigma: Tensor, threshold: Tensor | float) -> int:
    return int((sigma > threshold).sum())


def _column_basis(matrix: Tensor, shift: Tensor | float, tolerance: float) -> Tensor:
    """Return an orthonormal basis of the columns of matrix − shift.

    Relative to the matrix before the shift: equal keys minus their mean are only rounding.
    """
    left, sigma, _ = svd(matrix - shift)
    return left[:, sigma > tolerance * torch.linalg.matrix_norm(matrix, 2)]
