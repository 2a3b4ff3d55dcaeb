"""Effective attention under a causal mask: nested Gram matrices, computed block by block."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.linalg.factor import (
    Factor,
    certified_full_rank,
    certified_rank,
    factorise,
    inverse_of,
    least_share,
)
from identilens.linalg.row_sums import AssembledRows, ProjectedRows, RowSums, squares

BLOCK = 64
"""Causal rows that share a factorisation."""

_WELL_CONDITIONED = 64.0
"""Mean eigenvalue of an inverse Gram matrix up to which rounding of single precision does not grow with it."""


def sampled_rows(rows: slice) -> list[int]:
    """Return the rows whose head output is rebuilt from effective attention, where sums do without it.

    One row in 32 up to row 128, one in 128 beyond.
    """
    return [row for row in range(rows.start, rows.stop) if row % (32 if row < 128 else 128) == 0]


class _Block(NamedTuple):
    """Sums over the keys of each row a of a block, of its projection P a, and of P 1, the projection of the ones.

    Attributes:
        raw: Σ a.
        raw_square: ‖a‖².
        square: ‖P a‖².
        received: P a summed over the keys of each type.
        outside: ‖(I − P) 1‖².
        rebuilt: P a times F, of a few rows.
    """

    raw: Float[Tensor, "head row"]
    raw_square: Float[Tensor, "head row"]
    square: Float[Tensor, "head row"]
    received: Float[Tensor, "head row type"]
    outside: Float[Tensor, "head row"]
    rebuilt: Float[Tensor, "head place r"]


class _Nested(NamedTuple):
    """Neighbouring rows, each of which sees the rows of the block up to its own, and all before the block.

    Attributes:
        inverse: G⁻¹, of the whitened values before the block.
        root: N⁻¹, with N the Cholesky factor of I + B G⁻¹ Bᵀ and B the block's whitened values.
        steps: D = N⁻¹ B G⁻¹: G_i⁻¹ is G⁻¹ minus the sum of d_k d_kᵀ over the rows of D up to i.
    """

    inverse: Float[Tensor, "head r r"]
    root: Float[Tensor, "head row row"]
    steps: Float[Tensor, "head row r"]

    @classmethod
    def of(
        cls, block: Float[Tensor, "head row r"], inverse: Float[Tensor, "head r r"]
    ) -> "_Nested":
        moved = block @ inverse
        gram = moved @ block.mT
        gram.diagonal(dim1=-2, dim2=-1).add_(1)
        root = inverse_of(torch.linalg.cholesky(gram))
        return cls(inverse, root, root @ moved)

    def solved(self, whitened: Float[Tensor, "head row r"]) -> Float[Tensor, "head row r"]:
        """Return G_i⁻¹ w_i of each row of the block."""
        down = (whitened @ self.steps.mT).tril_()
        return torch.baddbmm(whitened @ self.inverse, down, self.steps, alpha=-1)


class CausalRows(AssembledRows):
    """Row i projects on the column space of T's first i + 1 rows.

    There are three kinds of rows. Certificates give the boundaries between them:

    - The first rows, as long as the rows of T up to i are linearly independent: effective attention equals the weights.
    - The last rows, where the Gram matrix of the previous rows has full rank. Let G be the Gram matrix of the keys
      before a block. Then G_i = G + Σ v_k v_kᵀ over the keys of the block up to i. Woodbury's identity needs the
      inverse of I + K_i, where K_i is the leading part of one matrix K of the block. Its Cholesky factor is nested
      (`_Nested`): a block costs a few products instead of one factorisation per row. Values are first whitened over
      the whole text, which keeps G well conditioned.
    - The rows between: one singular value decomposition per row.

    Sums need no effective attention. With N the Cholesky factor of I + K, B the whitened values of a block and
    D = N⁻¹ B G⁻¹, G_i⁻¹ is G⁻¹ minus the sum of d_k d_kᵀ over the rows of D up to i. So a block costs one small
    factorisation and some products, and leaves G⁻¹ for the next block where it is well conditioned.

    Args:
        compact: F, float64.
        factor: Factor of all rows of T.
        tolerance: For a number of rows of T, the share of σ_max up to which a singular value counts as zero.

    Attributes:
        white: The whitened values W, an orthonormal basis of col(T).
        independent: How many leading rows of each head's T are independent; on the CPU, as it decides what is computed.
        spanned: The first row of each head whose previous keys span T; the number of keys if there is none. On the CPU.
    """

    def __init__(
        self,
        compact: Float[Tensor, "head key r"],
        factor: Factor,
        tolerance: Callable[[int], float],
    ) -> None:
        self.compact, self.tolerance = compact, tolerance
        self.keys, self.width = compact.shape[-2:]
        self.rank: Int[Tensor, " head"] = factor.rank
        self.white, self._whitener = factor.basis, factor.coordinates
        self._running = 0, compact.new_zeros(len(compact), self.width, self.width)
        self.independent, self.spanned = (bounds.cpu() for bounds in self._boundaries(factor))
        self._rounded: Tensor | None = None
        self._start()

    def _start(self) -> None:
        """Begin the sums anew: of no rows, ‖(I − P) 1‖² and the whitened values summed over all keys and by type."""
        self._inverse: Tensor | None = None
        self._next, self._summed = 0, self.white.new_zeros(len(self.white), 1, self.white.shape[-1])
        self._typed, self._outside = self._summed.mT, self.white.new_zeros(len(self.white))

    def row_sizes(self) -> Int[Tensor, " query"]:
        """Return how many keys each query sees."""
        return torch.arange(1, self.keys + 1, device=self.compact.device)

    def row_ranks(self) -> Int[Tensor, "head query"]:
        """Return the rank of T restricted to each query's visible keys."""
        ranks = self.row_sizes().clamp(max=self.width).repeat(len(self.compact), 1)
        bounds = zip(self.independent.tolist(), self.spanned.tolist(), strict=True)
        for head, (independent, spanned) in enumerate(bounds):
            for row in range(independent, spanned):
                ranks[head, row] = certified_rank(
                    self.compact[head, : row + 1], self.tolerance(row + 1)
                )
        return ranks

    def seen(self, rows: slice | list[int]) -> Bool[Tensor, "row key"]:
        """Return which keys some queries see."""
        return torch.arange(self.keys, device=self.compact.device) < self.row_sizes()[rows, None]

    def _assemble(self, rows: slice, weights: Tensor | None, outputs: Tensor) -> Tensor:
        first, stop, _ = rows.indices(self.keys)
        result = self.compact.new_zeros(len(self.compact), stop - first, self.keys)
        split = min(max([*self.spanned.tolist(), first]), stop)
        for head, independent in enumerate(self.independent.tolist()):
            equal = min(max(first, independent), split) if weights is not None else first
            if weights is not None:
                result[head, : equal - first] = weights[head, : equal - first]
            for row in range(equal, split):
                here = (head, row - first)
                factor = factorise(self.compact[head, : row + 1], self.tolerance(row + 1))
                seen = None if weights is None else weights[*here, : row + 1]
                result[*here, : row + 1] = factor.effective(seen, outputs[here])
        for begin in range(split, stop, BLOCK):
            end = min(begin + BLOCK, stop)
            local = slice(begin - first, end - first)
            if weights is None:
                white = outputs[:, local] @ self._whitener
            else:
                white = weights[:, local, :end] @ self.white[:, :end]
            nested = _Nested.of(self.white[:, begin:end], self._inverse_of(begin))
            result[:, local, :end] = (nested.solved(white) @ self.white[:, :end].mT).tril(begin)
        return result

    def gram_before(self, begin: int) -> Tensor:
        """Return the Gram matrix of the whitened values before a row; rows are usually processed in order."""
        counted, gram = self._running
        if begin < counted:
            counted, gram = 0, torch.zeros_like(gram)
        new = self.white[:, counted:begin]
        self._running = begin, gram + new.mT @ new
        return self._running[1]

    def edges(self, first: int, stop: int) -> list[int]:
        """Return where the blocks of some rows begin, and where the last one ends."""
        return sorted(
            {first, *(row for row in range(self.width, stop, BLOCK) if row > first), stop}
        )

    def sums(
        self,
        rows: slice,
        weights: Float[Tensor, "head row seen"],
        raw: Float[Tensor, "head row type"],
        types: Float[Tensor, "head key type"],
        *,
        heads: slice = slice(None),
        overwrite: bool = False,
        back: Float[Tensor, "head k column"] | None = None,
    ) -> ProjectedRows:
        """Return sums over effective attention of some rows, without computing it; every key has one type.

        All rows of all heads are given once, in order; row 0 begins anew. ``raw`` are the weights summed over the keys
        of each type. Weights may be those on the keys up to the last row only. The head output of a few rows is
        rebuilt. The arguments are those of `FullRows.sums`.

        Raises:
            ValueError: Rows that do not follow those before.
        """
        first, stop, _ = rows.indices(self.keys)
        if not first:
            self._start()
        if first != self._next:
            raise ValueError(
                f"expected row {self._next} as the first; got {first}; give all rows once, in order."
            )
        blocks, places = [], []
        for begin, end in pairwise(self.edges(first, stop)):
            place = slice(begin - first, end - first)
            blocks.append(
                self._block(slice(begin, end), weights[:, place, :end], raw[:, place], types)
            )
            places += [row - first for row in sampled_rows(slice(begin, end))]
        total, total_square, square, received, outside, rebuilt = (
            torch.cat(parts, 1) for parts in zip(*blocks, strict=True)
        )
        # Every row's even share m, subtracted from sums: Σ (a − m)² = Σ a² − 2 m Σ a + m.
        even, effective = 1 / self.row_sizes()[rows].double(), received.sum(-1)
        sums = RowSums(
            even=even,
            raw=total - 1,
            raw_square=total_square - 2 * even * total + even,
            effective=effective - 1,
            effective_square=square - 2 * even * effective + even,
            cross=square - even * (effective + total) + even,
            outside=outside,
        )
        return ProjectedRows(sums, received, places, rebuilt)

    def _block(
        self,
        rows: slice,
        weights: Float[Tensor, "head row seen"],
        raw: Float[Tensor, "head row type"],
        types: Float[Tensor, "head key type"],
    ) -> _Block:
        """Return the sums of a few neighbouring rows, and effective attention times F of a few of them."""
        begin = rows.start
        sizes = torch.arange(rows.start, rows.stop) + 1
        starts = self._starts(rows)
        inverse = self._inverse_before(begin) if bool((starts == begin).all()) else None
        means = None if inverse is None else inverse.diagonal(dim1=-2, dim2=-1).mean(-1)
        conditioned = means is not None and bool((means <= _WELL_CONDITIONED).all())
        total, total_square, whitened = (self._rounded_sums if conditioned else self._exact_sums)(
            rows, weights
        )
        # Independent rows of T, where effective attention equals the weights, are the default.
        square = total_square.clone()
        received = raw.to(torch.float64, copy=True)
        outside = torch.zeros_like(total)
        checked = sampled_rows(rows)
        effective = weights[:, [row - begin for row in checked]].double()
        plain = (sizes > self.independent[:, None]) & (sizes <= starts[:, None])
        for row, heads, projected, left in self._decomposed(begin, plain, weights):
            square[heads, row], outside[heads, row] = projected.square().sum(-1), left
            received[heads, row] = (projected[:, None] @ types[heads, : projected.shape[-1]])[:, 0]
            if begin + row in checked:
                effective[heads, checked.index(begin + row), : projected.shape[-1]] = projected
        self._inverse = None
        for start in starts[starts < rows.stop].unique().tolist():
            heads = slice(None) if inverse is not None else starts == start
            place = slice(start - begin, None)
            left = self._outside if start == begin else outside[:, start - begin - 1]
            first = self._inverse_before(start, heads) if inverse is None else inverse
            found = self._nested_sums(
                slice(start, rows.stop), heads, whitened[heads, place], types, first, left[heads]
            )
            square[heads, place], received[heads, place], outside[heads, place], solved, after = (
                found
            )
            some = [row for row in checked if row >= start]
            if some:
                nested = (
                    solved[:, [row - start for row in some]] @ self.white[heads, : rows.stop].mT
                )
                effective[heads, -len(some) :] = nested.masked_fill_(
                    ~self.seen(some)[:, : rows.stop], 0.0
                )
            self._inverse = after if conditioned else None
        self._summed, self._typed = self._until(rows.stop, types)
        self._next, self._outside = rows.stop, outside[:, -1]
        rebuilt = effective @ self.compact[:, : rows.stop]
        return _Block(total, total_square, square, received, outside, rebuilt)

    def _decomposed(
        self, begin: int, plain: Bool[Tensor, "head row"], weights: Float[Tensor, "head row seen"]
    ) -> Iterator[tuple[int, Tensor, Float[Tensor, "some key"], Float[Tensor, " some"]]]:
        """Yield row, heads, P a and ‖(I − P) 1‖² where rows of some heads need a decomposition of their own."""
        for row in plain.any(0).nonzero().flatten().tolist():
            heads, seen = plain[:, row].nonzero().flatten(), begin + row + 1
            factor = factorise(self.compact[heads, :seen], self.tolerance(seen))
            given = weights[heads, row, :seen].double()
            projected, constant = factor.project(
                torch.stack([given, torch.ones_like(given)], 1)
            ).unbind(1)
            yield row, heads, projected, (1 - constant).square().sum(-1)

    def _starts(self, rows: slice) -> Int[Tensor, " head"]:
        """Return from which row of a block on each head is nested, or where the block ends.

        It is the first row, or 1, 2, 4, 8, ... rows later, so that few groups of heads differ.
        """
        size = rows.stop - rows.start
        places = [0, *(2**power for power in range(size.bit_length()) if 2**power < size), size]
        offsets = torch.tensor(places)
        later = (self.spanned - rows.start).clamp(0, size)
        return rows.start + offsets[torch.searchsorted(offsets, later)]

    def _exact_sums(
        self, rows: slice, weights: Float[Tensor, "head row seen"]
    ) -> tuple[Tensor, Tensor, Float[Tensor, "head row r"]]:
        """Return Σ a, ‖a‖² and a W of some rows in float64, W the whitened values."""
        weights = weights.double()
        return weights.sum(-1), squares(weights), weights @ self.white[:, : rows.stop]

    def _rounded_sums(
        self, rows: slice, weights: Float[Tensor, "head row seen"]
    ) -> tuple[Tensor, Tensor, Float[Tensor, "head row r"]]:
        """Return the same from products in the precision of the weights, of which even attention is subtracted first.

        So near-uniform rows do not lose digits.
        """
        if self._rounded is None or self._rounded.dtype != weights.dtype:
            self._rounded = self.white.to(weights.dtype)
        sizes = self.row_sizes()[rows]
        even = sizes.to(weights.dtype).reciprocal()
        moved = weights - even[:, None]
        moved[..., rows] = moved[..., rows].tril()
        left, square = moved.sum(-1).double(), squares(moved)
        whitened, even = (moved @ self._rounded[:, : rows.stop]).double(), even.double()
        all_even = even * sizes
        whitened.addcmul_(even[:, None], self._summed + self.white[:, rows].cumsum(-2))
        return left + all_even, square + even * (2 * left + all_even), whitened

    def _nested_sums(
        self,
        rows: slice,
        heads: slice | Bool[Tensor, " all"],
        whitened: Float[Tensor, "head row r"],
        types: Float[Tensor, "all key type"],
        inverse: Float[Tensor, "head r r"],
        left: Float[Tensor, " head"],
    ) -> tuple[Tensor, Tensor, Tensor, Float[Tensor, "head row r"], Float[Tensor, "head r r"]]:
        """Return ‖P a‖², P a by key type, ‖(I − P) 1‖² and G_i⁻¹ Wᵀ a of neighbouring rows, and G⁻¹ after.

        ``inverse`` is G⁻¹ before them, ``left`` ‖(I − P) 1‖² of the row before them.
        """
        block = self.white[heads, rows]
        nested = _Nested.of(block, inverse)
        solved = nested.solved(whitened)
        summed, typed = self._until(rows.start, types, heads)
        received = solved @ typed + (solved @ block.mT).tril_() @ types[heads, rows]
        # What a regression of the ones on the values leaves grows with each row by the square of its recursive
        # residual: of 1 minus its prediction from the rows before it, divided by its standard deviation.
        residuals = nested.root.sum(-1) - (nested.steps @ summed.mT)[..., 0]
        outside = left[:, None] + residuals.square().cumsum(-1)
        after = inverse - nested.steps.mT @ nested.steps
        return (whitened * solved).sum(-1), received, outside, solved, after

    def _until(
        self,
        row: int,
        types: Float[Tensor, "all key type"],
        heads: slice | Bool[Tensor, " all"] = slice(None),
    ) -> tuple[Float[Tensor, "head 1 r"], Float[Tensor, "head r type"]]:
        """Return the whitened values before a row, summed over all keys and by key type."""
        new = self.white[heads, self._next : row]
        typed = new.mT @ types[heads, self._next : row]
        return self._summed[heads] + new.sum(-2, keepdim=True), self._typed[heads] + typed

    def _inverse_before(
        self, row: int, heads: slice | Bool[Tensor, " all"] = slice(None)
    ) -> Float[Tensor, "head r r"]:
        """Return the inverse Gram matrix of the whitened values before a row."""
        return self._inverse_of(row, heads) if self._inverse is None else self._inverse

    def _inverse_of(
        self, row: int, heads: slice | Bool[Tensor, " all"] = slice(None)
    ) -> Float[Tensor, "head r r"]:
        inverse = inverse_of(torch.linalg.cholesky(self.gram_before(row)[heads]))
        return inverse.mT @ inverse

    def _boundaries(self, factor: Factor) -> tuple[Int[Tensor, " head"], Int[Tensor, " head"]]:
        """Return how many leading rows of each head's T are independent, and the first row whose previous keys span T.

        With L Lᵀ the Gram matrix of the leading rows, the least eigenvalue for m rows is at least 1 / ‖L_m⁻¹‖_F², and
        L_m⁻¹ is the leading part of L⁻¹. A certificate for the columns uses the Gram trace of the whole text, so that
        it is valid for all later rows.
        """
        leading = self.compact[:, : self.width]
        most = leading.shape[1]
        lower, info = torch.linalg.cholesky_ex(leading @ leading.mT)
        inverse = inverse_of(lower).square().sum(-1).cumsum(-1)
        limits = torch.tensor(
            [self._limit(size + 1) for size in range(most)], dtype=lower.dtype, device=lower.device
        )
        trace = leading.square().sum(-1).cumsum(-1)
        sizes = torch.arange(1, most + 1, device=lower.device)
        valid = (info[:, None] == 0) | (sizes < info[:, None])
        independent = (valid & (inverse * limits * trace < 1)).long().cumprod(-1).sum(-1)
        whole = torch.linalg.vector_norm(self.compact, dim=(-2, -1)).square()
        spanned = torch.full_like(independent, self.keys)
        # As many independent rows as columns span them; more rows than that only raise the least eigenvalue.
        square = (independent == self.width) & (inverse[:, -1] * self._limit(self.keys) * whole < 1)
        spanned[square] = self.width
        open_ = torch.nonzero(~square & (factor.rank == self.width)).flatten()
        step = 1
        rows = self.width
        while len(open_) and rows < self.keys:
            rows, step = min(rows + step, self.keys), max(1, (rows - self.width) // 3)
            head = self.compact[open_, :rows]
            gram = head.mT @ head
            growth = whole[open_] / gram.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(
                torch.finfo(head.dtype).tiny
            )
            certified = certified_full_rank(gram, self.tolerance(self.keys), growth)
            spanned[open_[certified]] = rows
            open_ = open_[~certified]
        return independent, spanned

    def _limit(self, rows: int) -> float:
        return least_share(self.tolerance(rows))
