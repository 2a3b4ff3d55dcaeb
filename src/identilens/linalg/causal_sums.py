"""Sums over effective attention under a causal mask, row after row, without computing it."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.linalg.causal_rows import BLOCK, CausalRows
from identilens.linalg.factor import factorise, inverse_of

_CALM = 64.0
"""Mean eigenvalue of an inverse Gram matrix up to which rounding of single precision does not grow with it."""


def checked_rows(rows: slice) -> list[int]:
    """Return of which of some rows outputs are rebuilt from effective attention, where sums do without it.

    One row in 32 up to row 128, one in 128 beyond.
    """
    return [row for row in range(rows.start, rows.stop) if row % (32 if row < 128 else 128) == 0]


class ProjectedSums(NamedTuple):
    """Sums over the keys of each row a, of its projection P a, and of P 1, the projection of the ones.

    Attributes:
        raw: Σ a.
        raw_square: ‖a‖².
        square: ‖P a‖².
        received: P a summed over the keys of each type.
        outside: ‖(I − P) 1‖².
    """

    raw: Float[Tensor, "head row"]
    raw_square: Float[Tensor, "head row"]
    square: Float[Tensor, "head row"]
    received: Float[Tensor, "head row type"]
    outside: Float[Tensor, "head row"]


class CausalSums:
    """Takes the rows of causal maps once, in order, and gives sums over effective attention.

    The kinds of rows are those of `CausalRows`. With N the Cholesky factor of I + K, B the whitened values of a block
    and D = N⁻¹ B G⁻¹, G_i⁻¹ is G⁻¹ minus the sum of d_k d_kᵀ over the rows of D up to i. So a block costs one small
    factorisation and some products, and leaves G⁻¹ for the next block where it is well conditioned.
    """

    def __init__(self, projector: CausalRows) -> None:
        self.projector, self._white = projector, projector.white
        self._rounded: Tensor | None = None
        self._inverse: Tensor | None = None
        # Of the rows so far: how many, their whitened values summed over all keys and by type, ‖(I − P) 1‖².
        self._next, self._summed = 0, self._white.new_zeros(len(self._white), 1, self._white.shape[-1])
        self._typed, self._outside = self._summed.mT, self._white.new_zeros(len(self._white))

    def edges(self, first: int, stop: int) -> list[int]:
        """Return where the blocks of some rows begin, and where the last one ends."""
        return sorted({first, *(row for row in range(self.projector.width, stop, BLOCK) if row > first), stop})

    def add(
        self, rows: slice, weights: Float[Tensor, "head row seen"], raw: Float[Tensor, "head row type"],
        types: Float[Tensor, "head key type"],
    ) -> tuple[ProjectedSums, list[int], Float[Tensor, "head checked r"]]:  # fmt: skip
        """Return sums over effective attention of some rows, without computing it; every key has one type.

        All rows are given once, in order. ``raw`` are the weights summed over the keys of each type. Weights may be
        those on the keys up to the last row only. Of a few rows effective attention is computed: the places of these
        among the rows, and effective attention times F, are returned too.

        Raises:
            ValueError: Rows that do not follow those before.
        """
        first, stop, _ = rows.indices(self.projector.keys)
        if first != self._next:
            raise ValueError(f"expected row {self._next} as the first; got {first}; give all rows once, in order.")
        blocks, checked = [], []
        for begin, end in pairwise(self.edges(first, stop)):
            place = slice(begin - first, end - first)
            blocks.append(self._block(slice(begin, end), weights[:, place, :end], raw[:, place], types))
            checked += [row - first for row in checked_rows(slice(begin, end))]
        sums, outputs = zip(*blocks, strict=True)
        whole = ProjectedSums(*(torch.cat(parts, 1) for parts in zip(*sums, strict=True)))
        return whole, checked, torch.cat(outputs, 1)

    def _block(
        self, rows: slice, weights: Float[Tensor, "head row seen"], raw: Float[Tensor, "head row type"],
        types: Float[Tensor, "head key type"],
    ) -> tuple[ProjectedSums, Float[Tensor, "head checked r"]]:  # fmt: skip
        """Return the sums of a few neighbouring rows, and effective attention times F of a few of them."""
        begin, sizes, starts = rows.start, torch.arange(rows.start, rows.stop) + 1, self._starts(rows)
        inverse = self._inverse_before(begin) if bool((starts == begin).all()) else None
        calm = inverse is not None and bool((inverse.diagonal(dim1=-2, dim2=-1).mean(-1) <= _CALM).all())
        total, total_square, whitened = (self._rounded_sums if calm else self._exact_sums)(rows, weights)
        # Independent rows of T, where effective attention equals the weights, are the default.
        square, received, outside = total_square.clone(), raw.to(torch.float64, copy=True), torch.zeros_like(total)
        checked = checked_rows(rows)
        effective = weights[:, [row - begin for row in checked]].double()
        plain = (sizes > self.projector.independent[:, None]) & (sizes <= starts[:, None])
        for row, heads, projected, left in self._decomposed(begin, plain, weights):
            square[heads, row], outside[heads, row] = projected.square().sum(-1), left
            received[heads, row] = (projected[:, None] @ types[heads, : projected.shape[-1]])[:, 0]
            if begin + row in checked:
                effective[heads, checked.index(begin + row), : projected.shape[-1]] = projected
        self._inverse = None
        for start in starts[starts < rows.stop].unique().tolist():
            heads, place = slice(None) if inverse is not None else starts == start, slice(start - begin, None)
            left = self._outside if start == begin else outside[:, start - begin - 1]
            first = self._inverse_before(start, heads) if inverse is None else inverse
            found = self._nested_sums(slice(start, rows.stop), heads, whitened[heads, place], types, first, left[heads])
            square[heads, place], received[heads, place], outside[heads, place], solved, after = found
            some = [row for row in checked if row >= start]
            if some:
                nested = solved[:, [row - start for row in some]] @ self._white[heads, : rows.stop].mT
                effective[heads, -len(some) :] = nested.masked_fill_(~self.projector.seen(some)[:, : rows.stop], 0.0)
            self._inverse = after if calm else None
        self._summed, self._typed = self._until(rows.stop, types)
        self._next, self._outside = rows.stop, outside[:, -1]
        rebuilt = effective @ self.projector.compact[:, : rows.stop]
        return ProjectedSums(total, total_square, square, received, outside), rebuilt

    def _decomposed(
        self, begin: int, plain: Bool[Tensor, "head row"], weights: Float[Tensor, "head row seen"]
    ) -> Iterator[tuple[int, Tensor, Float[Tensor, "some key"], Float[Tensor, " some"]]]:
        """Yield row, heads, P a and ‖(I − P) 1‖² where rows of some heads need a decomposition of their own."""
        for row in plain.any(0).nonzero().flatten().tolist():
            heads, seen = plain[:, row].nonzero().flatten(), begin + row + 1
            factor = factorise(self.projector.compact[heads, :seen], self.projector.tolerance(seen))
            given = weights[heads, row, :seen].double()
            projected, constant = factor.project(torch.stack([given, torch.ones_like(given)], 1)).unbind(1)
            yield row, heads, projected, (1 - constant).square().sum(-1)

    def _starts(self, rows: slice) -> Int[Tensor, " head"]:
        """Return from which row of a block on each head is nested, or where the block ends.

        It is the first row, or 1, 2, 4, 8, ... rows later, so that few groups of heads differ.
        """
        size = rows.stop - rows.start
        places = [0, *(2**power for power in range(size.bit_length()) if 2**power < size), size]
        offsets = torch.tensor(places)
        later = (self.projector.spanned - rows.start).clamp(0, size)
        return rows.start + offsets[torch.searchsorted(offsets, later)]

    def _exact_sums(
        self, rows: slice, weights: Float[Tensor, "head row seen"]
    ) -> tuple[Tensor, Tensor, Float[Tensor, "head row r"]]:
        """Return Σ a, ‖a‖² and a W of some rows in float64, W the whitened values."""
        weights = weights.double()
        squares = torch.linalg.vector_norm(weights, dim=-1).square()
        return weights.sum(-1), squares, weights @ self._white[:, : rows.stop]

    def _rounded_sums(
        self, rows: slice, weights: Float[Tensor, "head row seen"]
    ) -> tuple[Tensor, Tensor, Float[Tensor, "head row r"]]:
        """Return the same from products in the precision of the weights, of which even attention is subtracted first.

        So near-uniform rows do not lose digits.
        """
        if self._rounded is None or self._rounded.dtype != weights.dtype:
            self._rounded = self._white.to(weights.dtype)
        sizes = self.projector.row_sizes()[rows]
        even = sizes.to(weights.dtype).reciprocal()
        moved = weights - even[:, None]
        moved[..., rows] = moved[..., rows].tril()
        left, square = moved.sum(-1).double(), torch.linalg.vector_norm(moved, dim=-1).double().square()
        whitened, even = (moved @ self._rounded[:, : rows.stop]).double(), even.double()
        all_even = even * sizes
        whitened.addcmul_(even[:, None], self._summed + self._white[:, rows].cumsum(-2))
        return left + all_even, square + even * (2 * left + all_even), whitened

    def _nested_sums(
        self, rows: slice, heads: slice | Bool[Tensor, " all"], whitened: Float[Tensor, "head row r"],
        types: Float[Tensor, "all key type"], inverse: Float[Tensor, "head r r"], left: Float[Tensor, " head"],
    ) -> tuple[Tensor, Tensor, Tensor, Float[Tensor, "head row r"], Float[Tensor, "head r r"]]:  # fmt: skip
        """Return ‖P a‖², P a by key type, ‖(I − P) 1‖² and G_i⁻¹ Wᵀ a of neighbouring rows, and G⁻¹ after.

        ``inverse`` is G⁻¹ before them, ``left`` ‖(I − P) 1‖² of the row before them.
        """
        block = self._white[heads, rows]
        moved = block @ inverse
        gram = moved @ block.mT
        gram.diagonal(dim1=-2, dim2=-1).add_(1)
        nested = inverse_of(torch.linalg.cholesky(gram))
        steps = nested @ moved
        solved = torch.baddbmm(whitened @ inverse, (whitened @ steps.mT).tril_(), steps, alpha=-1)
        summed, typed = self._until(rows.start, types, heads)
        received = solved @ typed + (solved @ block.mT).tril_() @ types[heads, rows]
        # What a regression of the ones on the values leaves grows with each row by the square of its recursive
        # residual: of 1 minus its prediction from the rows before it, divided by its standard deviation.
        residuals = (nested @ (1 - moved @ summed.mT))[..., 0]
        outside = left[:, None] + residuals.square().cumsum(-1)
        return (whitened * solved).sum(-1), received, outside, solved, inverse - steps.mT @ steps

    def _until(
        self, row: int, types: Float[Tensor, "all key type"], heads: slice | Bool[Tensor, " all"] = slice(None)
    ) -> tuple[Float[Tensor, "head 1 r"], Float[Tensor, "head r type"]]:
        """Return the whitened values before a row, summed over all keys and by key type."""
        new = self._white[heads, self._next : row]
        typed = new.mT @ types[heads, self._next : row]
        return self._summed[heads] + new.sum(-2, keepdim=True), self._typed[heads] + typed

    def _inverse_before(self, row: int, heads: slice | Bool[Tensor, " all"] = slice(None)) -> Float[Tensor, "head r r"]:
        """Return the inverse Gram matrix of the whitened values before a row."""
        if self._inverse is not None:
            return self._inverse
        inverse = inverse_of(torch.linalg.cholesky(self.projector.gram_before(row)[heads]))
        return inverse.mT @ inverse
