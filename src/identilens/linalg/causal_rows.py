"""Effective attention under a causal mask: nested Gram matrices, computed block by block."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.linalg.factor import Factor, certified_full_rank, certified_rank, factorise, inverse_of, least_share

BLOCK = 64
"""Causal rows that share a factorisation."""


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

    Attributes:
        white: The whitened values W, an orthonormal basis of col(T).
        independent: How many leading rows of each head's T are independent; on the CPU, as it decides what is computed.
        spanned: The first row of each head whose previous keys span T; the number of keys if there is none. On the CPU.
    """

    def __init__(self, compact: Float[Tensor, "head key r"], factor: Factor, tolerance: Callable[[int], float]) -> None:
        self.compact, self.tolerance = compact, tolerance
        self.keys, self.width = compact.shape[-2:]
        self.rank: Int[Tensor, " head"] = factor.rank
        self.white, self._whitener = factor.basis, factor.coordinates
        self._running = 0, compact.new_zeros(len(compact), self.width, self.width)
        self.independent, self.spanned = (bounds.cpu() for bounds in self._boundaries(factor))

    def row_sizes(self) -> Int[Tensor, " query"]:
        """Return how many keys each query sees."""
        return torch.arange(1, self.keys + 1, device=self.compact.device)

    def row_ranks(self) -> Int[Tensor, "head query"]:
        """Return the rank of T restricted to each query's visible keys."""
        ranks = self.row_sizes().clamp(max=self.width).repeat(len(self.compact), 1)
        bounds = zip(self.independent.tolist(), self.spanned.tolist(), strict=True)
        for head, (independent, spanned) in enumerate(bounds):
            for row in range(independent, spanned):
                ranks[head, row] = certified_rank(self.compact[head, : row + 1], self.tolerance(row + 1))
        return ranks

    def seen(self, rows: slice | list[int]) -> Bool[Tensor, "row key"]:
        """Return which keys some queries see."""
        return torch.arange(self.keys, device=self.compact.device) < self.row_sizes()[rows, None]

    def effective(self, rows: slice, weights: Float[Tensor, "head row key"]) -> Float[Tensor, "head row key"]:
        """Return effective attention of some rows, zero on forbidden keys, in float64."""
        return self._assemble(rows, weights.double(), weights)

    def from_outputs(self, rows: slice, outputs: Float[Tensor, "head row r"]) -> Float[Tensor, "head row key"]:
        """Return effective attention from head outputs in the basis of ``compact``."""
        return self._assemble(rows, None, outputs)

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
            result[:, local, :end] = self._nested(begin, end, white)
        return result

    def _nested(self, begin: int, end: int, outputs: Float[Tensor, "head row r"]) -> Tensor:
        """Return effective attention of rows begin to end from their outputs in the whitened basis."""
        block = self.white[:, begin:end]
        lower = torch.linalg.cholesky(self.gram_before(begin))
        half, start = (torch.linalg.solve_triangular(lower, one.mT, upper=False) for one in (block, outputs))
        nested, (partial,) = _leading_parts(half, start)
        return (_solved(lower, half, nested, start, partial) @ self.white[:, :end].mT).tril(begin)

    def gram_before(self, begin: int) -> Tensor:
        """Return the Gram matrix of the whitened values before a row; rows are usually processed in order."""
        counted, gram = self._running
        if begin < counted:
            counted, gram = 0, torch.zeros_like(gram)
        new = self.white[:, counted:begin]
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
        inverse = inverse_of(lower).square().sum(-1).cumsum(-1)
        limits = torch.tensor([self._limit(size + 1) for size in range(most)], dtype=lower.dtype, device=lower.device)
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
