"""F(Q, K) = softmax(s Q Kᵀ + bias) C and its Jacobian in closed form; the full Jacobian is never computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import HeadValues, head_values
from identilens.linalg.checks import check_finite, check_mask
from identilens.linalg.decompositions import svd
from identilens.linalg.softmax import attention_logits, visible_softmax

RIDGE = 1e-13
"""Share of the mean diagonal added to J Jᵀ, so that redundant conditions do not make it singular."""

ROW_TOLERANCE = 1e-10
"""Singular values of one row's softmax Jacobian below this share of the row's largest are left out."""


@runtime_checkable
class RowOutputs(Protocol):
    """What the output of each row of attention is made of; see `SoftmaxMap`."""

    @property
    def visible(self) -> Bool[Tensor, "query key"]:
        """True where a query may see a key."""
        ...

    @property
    def kept(self) -> tuple[Tensor, ...]:
        """C_i of each row."""
        ...

    @property
    def shared(self) -> bool:
        """Whether all rows have the same C_i."""
        ...


@dataclass(frozen=True)
class SoftmaxMap:
    """A head's queries, keys and the bases of its output, in float64.

    Attributes:
        queries: Q.
        keys: K.
        scaling: s: logits are s · Q Kᵀ + bias.
        bias: Additive position bias, or None.
        visible: True where a query may see a key.
        kept: C_i of each row: orthonormal basis of T's columns minus their mean over the visible keys.
            Rows that see the same keys share one tensor.
        shared: Whether all rows see the same keys.
    """

    queries: Float[Tensor, "query d_k"]
    keys: Float[Tensor, "key d_k"]
    scaling: float
    bias: Float[Tensor, "query key"] | None
    visible: Bool[Tensor, "query key"]
    kept: tuple[Tensor, ...]
    shared: bool

    def weights(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return softmax(s Q Kᵀ + bias) over the visible keys."""
        return visible_softmax(
            attention_logits(queries, keys, self.scaling, self.bias), self.visible
        )

    @property
    def start(self) -> tuple[Tensor, Tensor]:
        """Q and K."""
        return self.queries, self.keys

    @property
    def unit(self) -> float:
        """The factor s of the logits, which `slope` and `linearised` leave out."""
        return self.scaling

    def at(self, point: Sequence[Tensor]) -> Tensor:
        """Return the weights of some Q and K."""
        queries, keys = point
        return self.weights(queries, keys)

    def slope(self, logits: Tensor, point: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the gradient in Q and K, over s, of a function of the logits with this gradient."""
        queries, keys = point
        return logits @ keys, logits.mT @ queries

    def linearised(self, weights: Tensor, point: Sequence[Tensor]) -> "VectorJacobian":
        """Return the Jacobian of the output at some Q and K."""
        queries, keys = point
        return VectorJacobian(self, queries, keys, weights)


@dataclass(frozen=True)
class Constraints:
    """Linear conditions on the change of the logits, one per row of ``rows``: rows[p] · dS[owner[p]] = given.

    Attributes:
        rows: Orthonormal within each query; a change keeps the output when all products are zero.
        owner: The query each condition belongs to.
    """

    rows: Float[Tensor, "p key"]
    owner: Int[Tensor, " p"]


def checked_head(
    queries: Float[Tensor, "query d_k"],
    keys: Float[Tensor, "key d_k"],
    projected_values: HeadValues,
    scaling: float | None = None,
    visible: Bool[Tensor, "query key"] | None = None,
    bias: Float[Tensor, "query key"] | None = None,
) -> SoftmaxMap:
    """Return the checked head.

    Args:
        queries: Q, as they enter the dot product (after any rotation).
        keys: K, in the same form.
        projected_values: T.
        scaling: Factor of the dot product; 1 / sqrt(d_k) by default.
        visible: True where a query sees a key; every key by default.
        bias: Position bias added to the logits. Give masks as ``visible``, not as -inf here.

    Raises:
        InputError: Shapes that do not belong together.
        NumericalError: Numbers that are not finite.
    """
    T = head_values(projected_values)
    check_finite(queries=queries, keys=keys, bias=bias)
    if queries.ndim != 2 or not queries.numel() or keys.shape != (T.keys, queries.shape[1]):
        raise InputError(
            f"expected queries and keys of one size, one projected value per key; got queries {tuple(queries.shape)}, "
            f"keys {tuple(keys.shape)}, {T.keys} projected values; pass one head's tensors "
            "(repeat grouped keys for their queries)."
        )
    (n_q, d_k), n_k = queries.shape, len(keys)
    if bias is not None and tuple(bias.shape) != (n_q, n_k):
        raise InputError(
            f"expected a bias of {n_q} x {n_k}; got {tuple(bias.shape)}; pass this head's bias, without batch."
        )
    check_mask(visible, n_q, n_k)
    kept = T.output_bases(n_q, visible)
    return SoftmaxMap(
        queries=queries.detach().double(),
        keys=keys.detach().double(),
        scaling=d_k**-0.5 if scaling is None else float(scaling),
        bias=None if bias is None else bias.detach().double(),
        visible=torch.ones((n_q, n_k), dtype=torch.bool, device=queries.device)
        if visible is None
        else visible,
        kept=kept,
        shared=all(basis is kept[0] for basis in kept),
    )


def row_bases(kept: Tensor, weights: Float[Tensor, "rows key"]) -> tuple[Tensor, Tensor]:
    """Return Q and R with M_iᵀ = Q R, where M_i = C_iᵀ (diag(a_i) − a_i a_iᵀ) maps logits to the row's output.

    The keys are sorted by weight before the QR. Householder's method is then accurate for every key relative to its
    weight (Cox & Higham 1998). So the spans are exact for slightly different values, and weights of very different size
    do not disturb the ranks. All rows have the same C_i, ``kept``.
    """
    mean = weights @ kept
    jacobians = (kept[None] - mean[:, None, :]) * weights[:, :, None]
    # Σ_j a_j (C_j − mean) = 0. At a key with nearly all the weight the difference cancels; the sum does not.
    top = weights.argmax(-1)[:, None, None].expand(-1, 1, kept.shape[1])
    jacobians = jacobians.scatter(1, top, 0.0)
    jacobians = jacobians.scatter(1, top, -jacobians.sum(1, keepdim=True))
    order = torch.argsort(weights, dim=-1, descending=True)[:, :, None].expand_as(jacobians)
    basis, triangle = torch.linalg.qr(torch.gather(jacobians, 1, order))
    return torch.zeros_like(basis).scatter_(1, order, basis), triangle


def output_constraints(
    given: RowOutputs, weights: Float[Tensor, "query key"], row_tolerance: float = ROW_TOLERANCE
) -> tuple[Constraints, list[Tensor]]:
    """Return the conditions M_i dS_i = 0 with orthonormal rows, and each row's map to them.

    M_i = Rᵀ Qᵀ: the conditions are the rows of Qᵀ, and a change e of the output needs Qᵀ dS = R⁻ᵀ e.
    Directions with singular values up to ``row_tolerance`` of the row's largest are left out: their weights are too
    small to have an effect. With a tolerance of 0 only exact zeros are left out.
    """
    rows, owners, maps = [], [], []
    groups = (
        [list(range(len(weights)))] if given.shared else [[index] for index in range(len(weights))]
    )
    for group in groups:
        bases, triangles = row_bases(given.kept[group[0]], weights[group])
        left, sigma, right = svd(triangles, full_matrices=True)
        for place, index in enumerate(group):
            top = sigma[place].max() if sigma.shape[1] else 0.0
            felt = (sigma[place] > row_tolerance * top) & (
                sigma[place] > (1e-14 if row_tolerance else 0.0)
            )
            if felt.all():
                rows.append(bases[place].mT)
                maps.append(left[place] @ (right[place] / sigma[place][:, None]))
            else:
                rows.append((bases[place] @ left[place][:, felt]).mT)
                maps.append(right[place][felt] / sigma[place][felt, None])
            owners.append(torch.full((len(rows[-1]),), index, device=weights.device))
    return Constraints(torch.cat(rows), torch.cat(owners)), maps


def weight_constraints(given: RowOutputs) -> Constraints:
    """Return the conditions "dS_i is constant over the visible keys": no weight changes."""
    rows, owners = [], []
    for index, seen in enumerate(given.visible):
        count = int(seen.sum())
        constant = torch.full((count, 1), 1.0, dtype=torch.float64, device=seen.device)
        centred = torch.linalg.qr(constant, mode="complete").Q[:, 1:].mT
        rows.append(centred.new_zeros((count - 1, len(seen))).masked_scatter(seen, centred))
        owners.append(torch.full((count - 1,), index, device=seen.device))
    return Constraints(torch.cat(rows), torch.cat(owners))


class VectorJacobian:
    """The Jacobian J of a head's output in (Q, K) at one point, with orthonormal rows for each query."""

    def __init__(self, given: SoftmaxMap, queries: Tensor, keys: Tensor, weights: Tensor):
        self.given, self.queries, self.keys = given, queries, keys
        conditions, self.maps = output_constraints(given, weights)
        self.rows, self.owner = conditions.rows, conditions.owner
        self.felt, self.owned = self.rows @ keys, queries[self.owner]
        gram = self.rows @ self.rows.mT
        gram *= self.owned @ self.owned.mT
        gram += (self.owner[:, None] == self.owner[None, :]) * (self.felt @ self.felt.mT)
        diagonal = gram.diagonal()
        diagonal += RIDGE * diagonal.mean()
        self.factor = torch.linalg.cholesky_ex(gram).L

    def forward(self, move: Sequence[Tensor]) -> Tensor:
        """Return J (dQ, dK) / s."""
        queries, keys = move
        return (self.felt * queries[self.owner]).sum(-1) + ((self.rows @ keys) * self.owned).sum(-1)

    def least_move(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (dQ, dK) of least norm with J (dQ, dK) / s = target."""
        multipliers = torch.cholesky_solve(target[:, None], self.factor)
        queries = torch.zeros_like(self.queries).index_add_(0, self.owner, multipliers * self.felt)
        return queries, self.rows.mT @ (multipliers * self.owned)
