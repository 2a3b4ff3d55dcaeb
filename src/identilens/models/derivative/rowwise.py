"""Linear maps of the rows of a tensor, as in norms, softmax and activations, composed symbolically."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

Factor = Tensor | float
"""Broadcasts against the tensor it multiplies."""


@dataclass(frozen=True, eq=False)
class RowMap:
    """The map x ↦ diagonal ∘ x + Σ_k outer_k (inner_k · x) of each row x (last axis) of a tensor.

    ``base`` is the number of the mapped tensor, ``shape`` its shape; ``terms`` are pairs (outer, inner). If ``summed``,
    the result's last axis has length 1, as after a sum over rows, and there is no diagonal.
    """

    base: int
    shape: torch.Size
    diagonal: Factor = 1.0
    terms: tuple[tuple[Factor, Factor], ...] = ()
    summed: bool = False

    @property
    def is_identity(self) -> bool:
        """Whether the tensor is unchanged."""
        return not self.terms and not self.summed and isinstance(self.diagonal, float) and self.diagonal == 1.0

    @property
    def result_shape(self) -> torch.Size:
        """Shape of the result."""
        return torch.Size([*self.shape[:-1], 1]) if self.summed else self.shape

    def scaled(self, factor: Factor, shape: torch.Size) -> "RowMap | None":
        """Return factor ∘ this map, broadcast to a shape, or None if that is not a map of rows."""
        if shape not in (self.shape, self.result_shape):
            return None
        terms = tuple((_times(outer, factor), inner) for outer, inner in self.terms)
        return replace(self, diagonal=_times(self.diagonal, factor), terms=terms, summed=shape != self.shape)

    def plus(self, other: "RowMap") -> "RowMap | None":
        """Return the sum of two maps of the same tensor, or None if they map different tensors."""
        if other.base != self.base:
            return None
        terms = list(self.terms)
        for outer, inner in other.terms:
            for index, (own, same) in enumerate(terms):
                if inner is same or (isinstance(inner, float) and isinstance(same, float) and inner == same):
                    terms[index] = (_plus(own, outer), same)
                    break
            else:
                terms.append((outer, inner))
        diagonal = _plus(self.diagonal, other.diagonal)
        return RowMap(self.base, self.shape, diagonal, tuple(terms), self.summed and other.summed)

    def row_sum(self) -> "RowMap | None":
        """Return the sum over the last axis, which keeps length 1; None if it is already summed."""
        if self.summed or not self.shape:
            return None
        total = RowMap(self.base, self.shape, 0.0, ((1.0, self.diagonal),), summed=True)
        for outer, inner in self.terms:
            wide = isinstance(outer, Tensor) and outer.ndim > 0 and outer.shape[-1] > 1
            share = outer.sum(-1, keepdim=True) if wide and isinstance(outer, Tensor) else outer * self.shape[-1]
            total = total.plus(RowMap(self.base, self.shape, 0.0, ((share, inner),), summed=True)) or total
        return total


def as_factor(value: Tensor) -> Factor:
    """Return a tensor of equal elements as one number, any other tensor unchanged."""
    first = value.flatten()[:1]
    return float(first) if value.numel() and bool((value == first).all()) else value


def _times(one: Factor, other: Factor) -> Factor:
    if isinstance(other, float):
        one, other = other, one
    if isinstance(one, float) and one in (0.0, 1.0):
        return other if one else 0.0
    return one * other


def _plus(one: Factor, other: Factor) -> Factor:
    if isinstance(other, float):
        one, other = other, one
    return other if isinstance(one, float) and one == 0.0 else one + other


def stacked(factors: list[Factor], shape: torch.Size, like: Tensor) -> Tensor:
    """Return factors [row, factor, width], expanded to a shape whose last axis is the width."""
    full = [torch.as_tensor(factor, dtype=like.dtype, device=like.device).expand(shape) for factor in factors]
    return torch.stack(full, -2).reshape(-1, len(factors), shape[-1])
