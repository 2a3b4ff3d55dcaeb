"""Effective attention under a causal mask: nested Gram matrices, computed block by block."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.linalg.factor import Factor, certified_full_rank, certified_rank, factorise, least_share
from identilens.linalg.simplex import CLEAR_SHARE

_BLOCK = 64


class ProjectedSums(NamedTuple):
    """Sums over the keys of each row a, of its projection P a, and of P 1, the projection of the ones.

    Attributes:
        raw_square: ‖a‖².
        raw_received: a summed over the keys of each type.
        square: ‖P a‖².
        received: P a summed over the keys of each type.
        outside: ‖(I − P) 1‖².
        output: P a F.
    """

    raw_square: Float[Tensor, "head row"]
    raw_received: Float[Tensor, "head row type"]
    square: Float[Tensor, "head row"]
    received: Float[Tensor, "head row type"]
    outside: Float[Tensor, "head row"]
    output: Float[Tensor, "head row r"]


class CausalRows:
    """Row i projects on the column space of T's first i + 1 rows.

    There are three kinds of rows. Certificates give the boundaries between them:

    - The first rows, as long as the rows of T up to i are linearly independent: effective attention equals the weights.
    - The last rows, where the Gram matrix of the previous rows has full rank. Let G be the Gram matrix of the keys
      before a block. Then G_i = G + Σ v_k v_kᵀ over the keys of the block up to i. Woodbury's identity needs the
      inverse of I + K_i, where K_i is the leading part of one matrix K of the block. Its Cholesky factor is nested:
      a block costs a few triangular solves instead of one factorisation per row. Values are first whitened over the
      whole text, which keeps G well conditioned.
    - The rows between: one singular value decomposition per row.

    Args:
        compact: F, float64.
        factor: Factor of all rows of T.
        tolerance: For a number of rows of T, the share of σ_max up to which a singular value counts as zero.
    """

    def __init__(self, compact: Float[Tensor, "head key r"], factor: Factor, tolerance: Callable[[int], float]) -> None:
        self.compact, self.tolerance = compact, tolerance
        self.keys, self.width = compact.shape[-2:]
        self.rank: Int[Tensor, " head"] = factor.rank
        self._white, self._whitener = factor.basis, factor.coordinates
        self._typed: tuple[Tensor, Tensor] | None = None
        self._summed: tuple[int, Tensor] | None = None
        self._running = 0, compact.new_zeros(len(compact), self.width, self.width)
        self._independent, self._spanned = self._boundaries(factor)
        # Nested blocks begin where nearly all heads are spanned; a head that is spanned late joins them later.
        early = self._spanned[self._spanned <= self.width + _BLOCK]
        self._split = int(early.max()) if len(early) else self.keys
        self._back = factor.basis.mT @ compact

    def row_sizes(self) -> Int[Tensor, " query"]:
        """Return how many keys each query sees."""
        return torch.arange(1, self.keys + 1, device=self.compact.device)

    def row_ranks(self) -> Int[Tensor, "head query"]:
        """Return the rank of T restricted to each query's visible keys."""
        ranks = self.row_sizes().clamp(max=self.width).repeat(len(self.compact), 1)
        for head, (independent, spanned) in enumerate(
            zip(self._independent.tolist(), self._spanned.tolist(), strict=True)
        ):
            for row in range(independent, spanned):
                ranks[head, row] = certified_rank(self.compact[head, : row + 1], self.tolerance(row + 1))
        return ranks

    def seen(self, rows: slice) -> Bool[Tensor, "row key"]:
        """Return which keys some queries see."""
        return torch.arange(self.keys, device=self.compact.device) < self.row_sizes()[rows, None]

    def effective(self, rows: slice, weights: Float[Tensor, "head row key"]) -> Float[Tensor, "head row key"]:
        """Return effective attention of some rows, zero on forbidden keys, in float64."""
        return self._assemble(rows, weights.double(), weights)

    def from_outputs(self, rows: slice, outputs: Float[Tensor, "head row r"]) -> Float[Tensor, "head row key"]:
        """Return effective attention from head outputs in the basis of ``compact``."""
        return self._assemble(rows, None, outputs)

    def sums(
        self, rows: slice, weights: Float[Tensor, "head row key"], types: Float[Tensor, "head key type"]
    ) -> ProjectedSums:
        """Return sums over effective attention of some rows, without computing it; every key has one type."""
        first, stop, _ = rows.indices(self.keys)
        columns = self._columns(types)
        edges = sorted({first, *range(min(max(self._split, first), stop), stop, _BLOCK), stop})
        blocks = [
            self._block(slice(begin, end), weights[:, begin - first : end - first, :end].double(), columns[:, :end])
            for begin, end in pairwise(edges)
        ]
        return ProjectedSums(*(torch.cat(parts, 1) for parts in zip(*blocks, strict=True)))

    def _block(
        self, rows: slice, weights: Float[Tensor, "head row key"], columns: Float[Tensor, "head key column"]
    ) -> ProjectedSums:
        """Return the sums of a few neighbouring rows; ``columns`` are the whitened values and the types of the keys."""
        width = self._white.shape[-1]
        whitened, raw = (weights @ columns).tensor_split([width], -1)
        raw_square, sizes = torch.linalg.vector_norm(weights, dim=-1).square(), self.row_sizes()[rows].double()
        # Independent rows of T, where effective attention equals the weights, are the default.
        square, received, ones = raw_square.clone(), raw.clone(), sizes.repeat(len(weights), 1)
        output, plain = whitened @ self._back, sizes > self._independent[:, None]
        spanned = self._spanned <= rows.start
        if bool(spanned.any()):
            chosen = slice(None) if bool(spanned.all()) else spanned
            found = self._nested_sums(rows, chosen, whitened[chosen], columns)
            square[chosen], received[chosen], ones[chosen], output[chosen] = *found[:3], found[3] @ self._back[chosen]
            plain[chosen] = False
        outside = sizes - ones
        # The ones almost in the space, or no certificate: these heads are decomposed.
        plain |= (outside <= CLEAR_SHARE * sizes) & (sizes > self._independent[:, None])
        for row in plain.any(0).nonzero().flatten().tolist():
            heads, seen = plain[:, row].nonzero().flatten(), rows.start + row + 1
            factor = factorise(self.compact[heads, :seen], self.tolerance(seen))
            given = weights[heads, row, :seen]
            effective, constant = factor.project(torch.stack([given, torch.ones_like(given)], 1)).unbind(1)
            square[heads, row] = effective.square().sum(-1)
            received[heads, row] = (effective[:, None] @ columns[heads, :seen, width:])[:, 0]
            outside[heads, row] = (1 - constant).square().sum(-1)
            output[heads, row] = (effective[:, None] @ self.compact[heads, :seen])[:, 0]
        return ProjectedSums(raw_square, raw, square, received, outside, output)

    def _nested_sums(
        self, rows: slice, heads: slice | Bool[Tensor, " all"], outputs: Float[Tensor, "head row r"],
        columns: Float[Tensor, "head key column"],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """Return ‖P a‖², P a by key type, ‖P 1‖² and P a U of some heads' rows; see `_nested`."""
        size, width = rows.stop - rows.start, outputs.shape[-1]
        gram, block = self._gram_before(rows.start)[heads], columns[heads, rows, :width]
        lower = torch.linalg.cholesky(gram)
        sums = self._sums_before(rows.start, columns)[heads]
        moments = torch.cat([gram, sums], -1)
        sides = torch.cat([block.mT, outputs.mT, sums.sum(-1, keepdim=True)], -1)
        half, start, ones = torch.linalg.solve_triangular(lower, sides, upper=False).split([size, size, 1], -1)
        ones = ones + half.cumsum(-1)
        nested, (partial, partial_ones) = _leading_parts(half, start, ones)
        solved = _solved(lower, half, nested, start, partial)
        both = solved @ moments + (solved @ block.mT).tril() @ columns[heads, rows]
        output, received = both.tensor_split([width], -1)
        square, square_ones = (
            whole.square().sum(-2) - part.square().sum(-2) for whole, part in ((start, partial), (ones, partial_ones))
        )
        return square, received, square_ones, output

    def _columns(self, types: Float[Tensor, "head key type"]) -> Float[Tensor, "head key column"]:
        """Return the whitened values beside the types; blocks of rows come with the same types."""
        if self._typed is None or self._typed[0] is not types:
            self._typed, self._summed = (types, torch.cat([self._white, types], -1)), None
        return self._typed[1]

    def _sums_before(self, begin: int, columns: Float[Tensor, "head key column"]) -> Float[Tensor, "head r type"]:
        """Return the sums of the whitened values before a row by key type; rows are usually processed in order."""
        width = self._white.shape[-1]
        counted, sums = self._summed or (0, 0)
        if begin < counted:
            counted, sums = 0, 0
        values, types = columns[:, counted:begin].tensor_split([width], -1)
        self._summed = begin, sums + values.mT @ types
        return self._summed[1]

    def _assemble(self, rows: slice, weights: Tensor | None, outputs: Tensor) -> Tensor:
        first, stop, _ = rows.indices(self.keys)
        result = self.compact.new_zeros(len(self.compact), stop - first, self.keys)
        split = min(max([*self._spanned.tolist(), first]), stop)
        for head, independent in enumerate(self._independent.tolist()):
            equal = min(max(first, independent), split) if weights is not None else first
            if weights is not None:
                result[head, : equal - first] = weights[head, : equal - first]
            for row in range(equal, split):
                here = (head, row - first)
                factor = factorise(self.compact[head, : row + 1], self.tolerance(row + 1))
                seen = None if weights is None else weights[*here, : row + 1]
                result[*here, : row + 1] = factor.effective(seen, outputs[here])
        for begin in range(split, stop, _BLOCK):
            end = min(begin + _BLOCK, stop)
            local = slice(begin - first, end - first)
            if weights is None:
                white = outputs[:, local] @ self._whitener
            else:
                white = weights[:, local, :end] @ self._white[:, :end]
            result[:, local, :end] = self._nested(begin, end, white)
        return result

    def _nested(self, begin: int, end: int, outputs: Float[Tensor, "head row r"]) -> Tensor:
        """Return effective attention of rows begin to end from their outputs in the whitened basis."""
        block = self._white[:, begin:end]
        lower = torch.linalg.cholesky(self._gram_before(begin))
        half, start = (torch.linalg.solve_triangular(lower, one.mT, upper=False) for one in (block, outputs))
        nested, (partial,) = _leading_parts(half, start)
        return (_solved(lower, half, nested, start, partial) @ self._white[:, :end].mT).tril(begin)

    def _gram_before(self, begin: int) -> Tensor:
        """Return the Gram matrix of the whitened values before a row; rows are usually processed in order."""
        counted, gram = self._running
        if begin < counted:
            counted, gram = 0, torch.zeros_like(gram)
        new = self._white[:, counted:begin]
        self._running = begin, gram + new.mT @ new
        return self._running[1]

    def _boundaries(self, factor: Factor) -> tuple[Int[Tensor, " head"], Int[Tensor, " head"]]:
        """Return how many leading rows of each head's T are independent, and the first row whose previous keys span T.

        With L Lᵀ the Gram matrix of the leading rows, the least eigenvalue for m rows is at least 1 / ‖L_m⁻¹‖_F², and
        L_m⁻¹ is the leading part of L⁻¹. A certificate for the columns uses the Gram trace of the whole text, so that
        it is valid for all later rows.
        """
        leading = self.compact[:, : self.width]
        most = leading.shape[1]
        lower, info = torch.linalg.cholesky_ex(leading @ leading.mT)
        identity = torch.eye(most, dtype=lower.dtype, device=lower.device).expand_as(lower)
        inverse = torch.linalg.solve_triangular(lower, identity, upper=False).square().sum(-1).cumsum(-1)
        limits = torch.tensor([self._limit(size + 1) for size in range(most)], dtype=lower.dtype, device=lower.device)
        trace = leading.square().sum(-1).cumsum(-1)
        sizes = torch.arange(1, most + 1, device=lower.device)
        valid = (info[:, None] == 0) | (sizes < info[:, None])
        independent = (valid & (inverse * limits * trace < 1)).long().cumprod(-1).sum(-1)
        whole = self.compact.square().sum((-2, -1))
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
            growth = whole[open_] / gram.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(torch.finfo(head.dtype).tiny)
            certified = certified_full_rank(gram, self.tolerance(self.keys), growth)
            spanned[open_[certified]] = rows
            open_ = open_[~certified]
        return independent, spanned

    def _limit(self, rows: int) -> float:
        return least_share(self.tolerance(rows))


def _leading_parts(half: Tensor, *sides: Float[Tensor, "head r row"]) -> tuple[Tensor, list[Tensor]]:
    """Return the Cholesky factor N of I + BᵀB, B = ``half``, and N⁻¹ Bᵀ of each side, of which row i uses a part.

    Row i uses the leading entries only; the others are set to zero, and later solves leave them so.
    """
    size = half.shape[-1]
    gram, products = (half.mT @ torch.cat([half, *sides], -1)).tensor_split([size], -1)
    gram.diagonal(dim1=-2, dim2=-1).add_(1)
    nested = torch.linalg.cholesky(gram)
    parts = torch.linalg.solve_triangular(nested, products, upper=False).split(size, -1)
    return nested, [part.triu() for part in parts]


def _solved(lower: Tensor, half: Tensor, nested: Tensor, start: Tensor, partial: Tensor) -> Float[Tensor, "head row r"]:
    """Return G_i⁻¹ of each row's output by Woodbury's identity, from L⁻¹ of the output and its leading part."""
    update = torch.linalg.solve_triangular(nested.mT, partial, upper=True)
    return torch.linalg.solve_triangular(lower.mT, start - half @ update, upper=True).mT
