"""Linear operations on many tensors at once; each has the shape of one tensor in a recorded derivative.

The batch axis is the first axis, but in memory it is the last but one: all copies of a row are adjacent. So every
product with a matrix is one large product, and every map of rows is one product for each row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.models.derivative.rowwise import RowMap, stacked


@dataclass(frozen=True, eq=False)
class Rowwise:
    """A `RowMap` prepared for a product with each row; ``kept`` says whether the result includes the row itself."""

    kept: bool
    diagonal: Float[Tensor, "one_or_row 1 width"] | None
    inner: Float[Tensor, "row width term"] | None
    outer: Float[Tensor, "row term result"] | None

    @classmethod
    def of(cls, rows: RowMap, like: Tensor) -> "Rowwise":
        """Return a row map with its factors prepared; ``like`` has the dtype and device of the mapped tensor."""
        factor, width = rows.diagonal, rows.shape[-1]
        kept = not rows.terms or isinstance(factor, Tensor) or factor != 0.0
        diagonal = None
        if kept and (isinstance(factor, Tensor) or factor != 1.0):
            diagonal = torch.as_tensor(factor, dtype=like.dtype, device=like.device)
            lead = [1] * (len(rows.shape) - 1) if prod(diagonal.shape[:-1]) == 1 else rows.shape[:-1]
            diagonal = diagonal.expand(*lead, width).reshape(-1, 1, width)
        if not rows.terms:
            return cls(kept, diagonal, None, None)
        inner = stacked([inner for _, inner in rows.terms], rows.shape, like).mT.contiguous()
        return cls(kept, diagonal, inner, stacked([outer for outer, _ in rows.terms], rows.result_shape, like))

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the map to every row."""
        rows = x.movedim(0, -2)
        flat = rows.reshape(-1, *rows.shape[-2:])
        result = flat if self.diagonal is None else flat * self.diagonal
        if self.inner is not None and self.outer is not None:
            coefficients = torch.bmm(flat, self.inner)
            if self.kept:
                result = (result.baddbmm if result is flat else result.baddbmm_)(coefficients, self.outer)
            else:
                result = torch.bmm(coefficients, self.outer)
        return result.view(*rows.shape[:-1], result.shape[-1]).movedim(-2, 0)


@dataclass(frozen=True, eq=False)
class Product:
    """x @ matrix, or matrix @ x (``left``), or a batch of such products, optionally added to another tensor.

    ``shape`` is the shape of one result, without axes of length 1.
    """

    matrix: Float[Tensor, "... k m"]
    left: bool
    shape: torch.Size

    def __call__(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """Return the product; if ``onto`` is given, added to it and in its shape."""
        count, lead = len(x), self.matrix.shape[:-2]
        flat = self._folded(x)
        pair = (self.matrix, flat) if self.left else (flat, self.matrix)
        if onto is None:
            product = torch.matmul(*pair)
        else:
            own = onto.reshape(count, *self.shape).movedim(0, -2)
            own = own.reshape(*lead, self.shape[-2], -1) if self.left else own.reshape(*lead, -1, self.shape[-1])
            product = (torch.baddbmm if lead else torch.addmm)(own, *pair)
        product = product.view(*self.shape[:-1], count, self.shape[-1]).movedim(-2, 0)
        return product if onto is None else product.reshape(onto.shape)

    def _folded(self, x: Tensor) -> Tensor:
        """Return x with its batch axis merged into the axis that the product does not sum over."""
        lead = self.matrix.shape[:-2]
        if not self.left:
            return x.movedim(0, -2).reshape(*lead, -1, x.shape[-1])
        if x.stride(-2) < x.stride(-1):
            # Stored transposed: a copy, if needed, is made along its own rows.
            return x.mT.movedim(0, -3).reshape(*lead, -1, x.shape[-2]).mT
        return x.movedim(0, -2).reshape(*lead, x.shape[-2], -1)


@dataclass(frozen=True)
class Reshape:
    """The same numbers in another shape: for one tensor, ``old`` before and ``new`` after."""

    old: torch.Size
    new: torch.Size

    @property
    def squeezes(self) -> bool:
        """Whether only axes of length 1 are added or removed."""
        return [size for size in self.old if size > 1] == [size for size in self.new if size > 1]

    def __call__(self, x: Tensor) -> Tensor:
        """Reshape with the batch axis after the unchanged axes, so that a copy, if needed, keeps its memory order."""
        pairs = enumerate(zip(self.old, self.new, strict=False))
        same = next((axis for axis, (old, new) in pairs if old != new), min(len(self.old), len(self.new)))
        return x.movedim(0, same).reshape(*self.new[:same], len(x), *self.new[same:]).movedim(same, 0)


@dataclass(frozen=True, eq=False)
class Mapped:
    """Any other operation, run for each member of the batch by `torch.vmap`."""

    call: Callable[..., Any]

    def __call__(self, *tensors: Tensor) -> Any:
        """Run the operation."""
        return torch.vmap(self.call)(*tensors)


class Sum(Mapped):
    """a + b, which a product can include."""

    def __init__(self) -> None:
        super().__init__(torch.add)


Operation = Rowwise | Product | Reshape | Mapped
