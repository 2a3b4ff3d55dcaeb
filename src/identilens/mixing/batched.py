"""Linear operations on many tensors at once, each with the shape that one has in a recorded derivative.

The batch axis comes first to look at, but in memory it stands before the last one: all copies of a row lie side by
side. So every product with a matrix is one large product, and every map of rows one product for each row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from identilens.mixing.rowwise import RowMap, stacked

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Rowwise:
    """A `RowMap` laid out for a product with each row.

    Attributes:
        kept: Whether the row itself is in the result, and not only the terms.
        diagonal: [1 or row, 1, width], what it is multiplied with; None for 1.
        inner: [row, width, term].
        outer: [row, term, width of the result].
        reuse: Whether the result takes the memory of what is mapped.
    """

    kept: bool
    diagonal: Tensor | None
    inner: Tensor | None
    outer: Tensor | None
    reuse: bool = False

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
        own = self.reuse or flat.data_ptr() != x.data_ptr()
        coefficients = None if self.inner is None else torch.bmm(flat, self.inner)
        if self.kept and self.diagonal is not None:
            flat = flat.mul_(self.diagonal) if own else flat * self.diagonal
            own = True
        if coefficients is not None and self.outer is not None:
            if not self.kept:
                flat = torch.bmm(coefficients, self.outer)
            else:
                flat = (flat.baddbmm_ if own else flat.baddbmm)(coefficients, self.outer)
        return flat.view(*rows.shape[:-1], flat.shape[-1]).movedim(-2, 0)


@dataclass(frozen=True, eq=False)
class Product:
    """x @ matrix, or matrix @ x, or a batch of such products; onto what is there, if something is.

    Attributes:
        matrix: [..., k, m].
        left: Whether the matrix stands left of x.
        shape: What one result has, leading or other axes of length 1 aside.
        reuse: Whether the sum takes the memory of what was there.
    """

    matrix: Tensor
    left: bool
    shape: torch.Size
    reuse: bool = False

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
            reuse = self.reuse or own.data_ptr() != onto.data_ptr()
            if lead:
                product = own.baddbmm_(*pair) if reuse else own.baddbmm(*pair)
            else:
                product = own.addmm_(*pair) if reuse else own.addmm(*pair)
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


@dataclass(frozen=True, eq=False)
class Sum:
    """a + b, both of the given shape."""

    shape: torch.Size
    reuse: bool = False

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """Add."""
        return a.add_(b) if self.reuse else a + b


@dataclass(frozen=True, eq=False)
class View:
    """The same numbers, or some of them, looked at anew.

    Attributes:
        run: How, for many.
        old: Shape of one.
        new: Shape that it gets.
        reshapes: Whether all numbers stay, in their order.
        overlaps: Whether some numbers come more than once.
    """

    run: Callable[[Tensor], Tensor]
    old: torch.Size
    new: torch.Size
    reshapes: bool = False
    overlaps: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """Look at it so."""
        return self.run(x)


@dataclass(frozen=True, eq=False)
class Mapped:
    """Any other operation, run for each member of the batch by `torch.vmap`."""

    call: Callable[..., Any]

    def __call__(self, *tensors: Tensor) -> Any:
        """Run it."""
        return torch.vmap(self.call)(*tensors)


Operation = Rowwise | Product | Sum | View | Mapped


def view_of(func: Any, args: tuple, old: torch.Size, new: torch.Size) -> View | None:
    """Return an operation that only looks at its first argument anew, or None where it does more."""
    if func in (aten.view.default, aten._unsafe_view.default, aten.reshape.default):
        return View(_reshape(old, new), old, new, reshapes=True)
    if func not in _SHIFTED:
        return None
    run, rest = _SHIFTED[func], args[1:]
    return View(lambda x: run(x, *rest), old, new, overlaps=func == aten.expand.default)


def _reshape(old: torch.Size, new: torch.Size) -> Callable[[Tensor], Tensor]:
    # The batch axis goes behind the axes that stay, so that it keeps its place in memory where a copy is needed.
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    return lambda x: x.movedim(0, same).reshape(*new[:same], len(x), *new[same:]).movedim(same, 0)


def _expand(x: Tensor, size: list[int], implicit: bool = False) -> Tensor:
    new = [1] * (len(size) - x.ndim + 1)
    return x.reshape(len(x), *new, *x.shape[1:]).expand(-1, *size)


def _behind(axis: int) -> int:
    """Return where an axis is when another comes first."""
    return axis if axis < 0 else axis + 1


_SHIFTED: dict[Any, Callable[..., Tensor]] = {
    aten.t.default: lambda x: x.mT,
    aten.transpose.int: lambda x, a, b: x.transpose(_behind(a), _behind(b)),
    aten.permute.default: lambda x, axes: x.permute(0, *map(_behind, axes)),
    aten.unsqueeze.default: lambda x, axis: x.unsqueeze(_behind(axis)),
    aten.select.int: lambda x, axis, index: x.select(_behind(axis), index),
    aten.slice.Tensor: lambda x, axis=0, start=None, end=None, step=1: aten.slice.Tensor(
        x, _behind(axis), start, end, step
    ),
    aten.expand.default: _expand,
}
