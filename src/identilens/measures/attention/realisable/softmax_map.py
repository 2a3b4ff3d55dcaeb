"""A = softmax(S(point)) of one head or several, and what conditions the outputs A C set on a change of S."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from identilens.errors import InputError
from identilens.linalg import HeadValues, head_values
from identilens.linalg.checks import check_finite, check_mask
from identilens.linalg.decompositions import svd
from identilens.linalg.softmax import visible_softmax
from identilens.measures.attention.realisable.coordinates import (
    Conditions,
    Coordinates,
    QueriesAndKeys,
)

ROW_TOLERANCE = 1e-10
"""Singular values of one row's softmax Jacobian below this share of the row's largest are left out."""


@dataclass(frozen=True)
class SoftmaxMap:
    """Attention as a function of a point that makes its logits, on one text; the rows of several heads are stacked.

    Attributes:
        coordinates: The point of the heads themselves, and the logits of any other: queries and keys, or parameters.
        visible: True where a row sees a key.
        kept: C_i of each row: orthonormal basis of the columns of its head's T minus their mean over the visible keys.
            Rows that see the same keys share one tensor.
        rows: The rows of the head that is looked at; all by default.
    """

    coordinates: Coordinates
    visible: Bool[Tensor, "row key"]
    kept: tuple[Tensor, ...]
    rows: slice = field(default_factory=lambda: slice(None))

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
        InputError: Shapes that do not belong together.
        NumericalError: Numbers that are not finite.
    """
    T = head_values(projected_values)
    check_finite(queries=queries, keys=keys, bias=bias)
    n_q, d_k = queries.shape if queries.ndim == 2 else (0, 0)
    biased = None if bias is None else tuple(bias.shape)
    if not queries.numel() or keys.shape != (T.keys, d_k) or biased not in (None, (n_q, T.keys)):
        raise InputError(
            "expected queries and keys of one size, one projected value per key, and a bias of queries x keys; got "
            f"queries {tuple(queries.shape)}, keys {tuple(keys.shape)}, {T.keys} projected values and the bias "
            f"{biased}; pass one head's tensors (repeat grouped keys for their queries)."
        )
    check_mask(visible, n_q, T.keys)
    coordinates = QueriesAndKeys(
        queries.detach().double(),
        keys.detach().double(),
        d_k**-0.5 if scaling is None else float(scaling),
        None if bias is None else bias.detach().double(),
    )
    seen = torch.ones_like(queries @ keys.mT, dtype=torch.bool) if visible is None else visible
    return SoftmaxMap(coordinates, seen, T.output_bases(n_q, visible))


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
    rows = []
    for visible in heads.visible:
        count = int(visible.sum())
        constant = torch.ones((count, 1), dtype=torch.float64, device=visible.device)
        centred = torch.linalg.qr(constant, mode="complete").Q[:, 1:].mT
        rows.append(centred.new_zeros((count - 1, len(visible))).masked_scatter(visible, centred))
    free = heads.visible.sum(-1) - 1
    return Conditions(
        torch.cat(rows), torch.arange(len(rows), device=free.device).repeat_interleave(free)
    )
