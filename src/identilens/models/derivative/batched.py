"""Linear operations on many tensors at once, each with the shape that one has in a recorded derivative.

The batch axis comes first to look at, but in memory it stands before the last one: all copies of a row lie side by
side. So every product with a matrix is one large product, and every map of rows one product for each row.
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
    """A `RowMap` laid out for a product with each row; ``kept`` says whether the row itself is in the result too."""

    kept: bool
    diagonal: Float[Tensor, "one_or_row 1 width"] | None
    inner: Float[Tensor, "row width term"] | None
    outer: Float[Tensor, "row term result"] | None

    @classmethod
    def of(cls, rows: RowMap, like: Tensor) -> "Rowwise":
        """Return a row map with its factors laid out; ``like`` has the type and place of what is mapped."""
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
        """Apply it to every row."""
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
    """x @ matrix, or matrix @ x (``left``), or a batch of such products; onto what is there, if something is.

    ``shape`` is what one result has, leading or other axes of length 1 aside.
    """

    matrix: Float[Tensor, "... k m"]
    left: bool
    shape: torch.Size

    def __call__(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """Return the product; added to ``onto`` and in its shape where that is given."""
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
        """Return x with its batch axis drawn into the axis that the product leaves alone."""
        lead = self.matrix.shape[:-2]
        if not self.left:
            return x.movedim(0, -2).reshape(*lead, -1, x.shape[-1])
        if x.stride(-2) < x.stride(-1):
            # Stored the other way round: copied, if it must be, along its own rows.
            return x.mT.movedim(0, -3).reshape(*lead, -1, x.shape[-2]).mT
        return x.movedim(0, -2).reshape(*lead, x.shape[-2], -1)


@dataclass(frozen=True)
class Reshape:
    """The same numbers in another shape: of one, ``old`` before and ``new`` after."""

    old: torch.Size
    new: torch.Size

    @property
    def squeezes(self) -> bool:
        """Whether only axes of length 1 come or go."""
        return [size for size in self.old if size > 1] == [size for size in self.new if size > 1]

    def __call__(self, x: Tensor) -> Tensor:
        """Reshape, the batch axis behind the axes that stay, so that it keeps its place where a copy is needed."""
        pairs = enumerate(zip(self.old, self.new, strict=False))
        same = next((axis for axis, (old, new) in pairs if old != new), min(len(self.old), len(self.new)))
        return x.movedim(0, same).reshape(*self.new[:same], len(x), *self.new[same:]).movedim(same, 0)


@dataclass(frozen=True, eq=False)
class Mapped:
    """Any other operation, run for each member of the batch by `torch.vmap`."""

    call: Callable[..., Any]

    def __call__(self, *tensors: Tensor) -> Any:
        """Run it."""
        return torch.vmap(self.call)(*tensors)


class Sum(Mapped):
    """a + b, which a product can take over."""

    def __init__(self) -> None:
        super().__init__(torch.add)


Operation = Rowwise | Product | Reshape | Mapped
