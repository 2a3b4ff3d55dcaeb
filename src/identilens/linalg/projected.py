"""The projected values T = V W_O of heads, stored as factors: rank, projectors and spaces that follow from T."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from identilens.errors import InputError
from identilens.linalg.checks import check_finite, check_mask, check_values
from identilens.linalg.compact import OutputFactor
from identilens.linalg.decompositions import singular_values
from identilens.linalg.factor import Factor, factorise, factorise_product
from identilens.linalg.masked_rows import CausalRows, MaskedRows
from identilens.linalg.memory import wide
from identilens.linalg.rows import FullRows, RowProjector
from identilens.linalg.simplex import (
    SimplexSpace,
    centred_rank,
    row_space,
)
from identilens.linalg.tolerance import relative_tolerance

Visible = Bool[Tensor, "query key"] | None
"""Which keys each query sees; None for every key."""


@dataclass(frozen=True)
class ProjectedValues:
    """T = V W_O of one or several heads, as factors: T = F Qᵀ with orthonormal columns Q. T itself is never computed.

    Attributes:
        values: V, float64; or F itself without ``output``.
        d_model: Number of columns of T.
        output: L of W_O, where F = V L.
    """

    values: Float[Tensor, "*head key r"]
    d_model: int
    output: OutputFactor | None = None

    @classmethod
    def of(
        cls,
        values: Float[Tensor, "*head key d_v"],
        output_projection: Float[Tensor, "*#head d_v d_model"] | None = None,
    ) -> "ProjectedValues":
        """Return the projected values of some heads.

        Args:
            values: V, value bias included; or T itself when no projection is given.
            output_projection: W_O, each head's block, without its bias (Brunner: H; Bhardwaj: D).

        Raises:
            InputError: For shapes that do not fit, or an empty sequence.
            NumericalError: For NaN or infinite entries.
        """
        check_values(values, output_projection)
        values = wide(values)
        if output_projection is None:
            return cls(values, values.shape[-1])
        output = OutputFactor.of(output_projection)
        return cls(values, output.d_model, output)

    @cached_property
    def compact(self) -> Float[Tensor, "*head key r"]:
        """F = V L, float64: its rows have the same inner products as those of T = F Qᵀ, see `OutputFactor`.

        So F has the singular values, left singular vectors and left null space of T, and min(d_v, d_model) columns.
        """
        return self.values if self.output is None else self.values @ self.output.lower

    @property
    def keys(self) -> int:
        """Number of rows of T."""
        return self.values.shape[-2]

    def tolerance_of(self, keys: Any) -> Any:
        """Return the share of σ_max up to which a singular value of so many rows of T counts as zero."""
        return relative_tolerance(keys, self.d_model)

    @property
    def tolerance(self) -> float:
        """The share of σ_max(T) up to which a singular value of T counts as zero."""
        return self.tolerance_of(self.keys)

    @cached_property
    def singular_values(self) -> Float[Tensor, "*head k"]:
        """Singular values of T, largest first, min(n, d_v, d_model) of them."""
        return singular_values(self.compact)

    @cached_property
    def rank(self) -> Int[Tensor, "*head"]:
        """Numerical rank of T: singular values above the tolerance."""
        sigma = self.singular_values
        return (sigma > self.tolerance * sigma[..., :1]).sum(-1)

    @cached_property
    def simplex_nullity(self) -> Int[Tensor, "*head"]:
        """The dimension n − rank([T, 1]) of LN([T, 1]) (Brunner 3.3); rank([T, 1]) is rank(T) or one more."""
        return self.keys - 1 - centred_rank(self.compact, self.factor, self.tolerance)

    @cached_property
    def factor(self) -> Factor:
        """Orthonormal basis of col(T), its pseudo-inverse and its rank."""
        if self.output is None:
            return factorise(self.compact, self.tolerance)
        return factorise_product(self.values, self.compact, self.output.inverse, self.tolerance)

    def restricted(self, keys: Bool[Tensor, " key"]) -> "ProjectedValues":
        """Return the rows of T at these keys."""
        return replace(self, values=self.values[..., keys, :])

    def with_sink(self) -> "ProjectedValues":
        """Return T with one more row, of a learned sink: a key whose value is zero."""
        return replace(self, values=pad(self.values, (0, 0, 0, 1)))

    def of_heads(self) -> "ProjectedValues":
        """Return T of one head with an axis of heads."""
        return replace(self, values=self.compact[None], output=None)

    def projector(self, queries: int, visible: Visible = None) -> RowProjector:
        """Return the projector for the mask: one for all rows, nested for causal rows, or row by row."""
        check_mask(visible, queries, self.keys)
        compact = self.compact.reshape(-1, *self.compact.shape[-2:])
        parts = compact, self.factor.flat, self.tolerance_of
        if visible is None or visible.all():
            return FullRows(
                *parts, compact.new_ones(1, self.keys, dtype=torch.bool).expand(queries, -1)
            )
        if queries == self.keys and torch.equal(visible, torch.ones_like(visible).tril()):
            return CausalRows(*parts, visible)
        return MaskedRows(*parts, visible)

    def effective(
        self, weights: Float[Tensor, "*head query key"], visible: Visible = None
    ) -> Float[Tensor, "*head query key"]:
        """Return effective attention (Brunner et al. 2020, Eq. 9): each row projected on col(T) of the keys it sees."""
        rows = weights.reshape(-1, *weights.shape[-2:])
        return self.projector(rows.shape[1], visible).effective(rows).reshape(weights.shape)

    def simplex_space(self, visible: Bool[Tensor, " key"] | None = None) -> SimplexSpace:
        """Return LN([T, 1]) of a row of each head that sees the keys S_i, and its complement, which must not change.

        Raises:
            InputError: For a mask of another length, or a mask without a visible key.
        """
        if visible is None:
            visible = self.compact.new_ones(self.keys, dtype=torch.bool)
        check_mask(visible[None], 1, self.keys)
        return row_space(self.compact.detach(), visible, self.tolerance_of(int(visible.sum())))

    def simplex_spaces(
        self, queries: int, visible: Bool[Tensor, "query key"] | None = None
    ) -> list[SimplexSpace]:
        """Return the space of every row; rows that see the same keys share one object."""
        if visible is None:
            return [self.simplex_space()] * queries
        masks, numbers = visible.unique(dim=0, return_inverse=True)
        spaces = [*map(self.simplex_space, masks)]
        return [spaces[number] for number in numbers.tolist()]

    def output_bases(
        self, queries: int, visible: Bool[Tensor, "query key"] | None = None
    ) -> tuple[Tensor, ...]:
        """Return an orthonormal basis of T's columns off the constant for every row."""
        return tuple(space.kept[:, 1:] for space in self.simplex_spaces(queries, visible))


HeadValues = Float[Tensor, "key d_model"] | ProjectedValues
"""T of one head, as a tensor or as factors."""


def projected(
    values: Float[Tensor, "*head key d_v"] | ProjectedValues,
    output_projection: Float[Tensor, "*#head d_v d_model"] | None = None,
) -> ProjectedValues:
    """Return the projected values of some heads, from tensors (see `ProjectedValues.of`) or unchanged.

    Raises:
        InputError: For values that are projected, and an output projection as well.
    """
    if not isinstance(values, ProjectedValues):
        return ProjectedValues.of(values, output_projection)
    if output_projection is not None:
        raise InputError(
            "expected no output_projection: the values are projected. Pass one of them."
        )
    return values


def head_values(projected_values: HeadValues) -> ProjectedValues:
    """Return T of one head as factors."""
    if isinstance(projected_values, Tensor):
        check_finite(projected_values=projected_values)
    T = projected(projected_values)
    if T.values.ndim != 2:
        raise InputError(
            "expected the projected values of one head, of shape (key, d_model); got "
            f"{tuple(T.values.shape)}. Pass those of each head by itself."
        )
    return T
