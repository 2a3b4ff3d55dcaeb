"""Effective attention under a causal mask: nested Gram matrices, computed block by block."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.linalg.factor import Factor, certified_full_rank, certified_rank, factorise

_BLOCK = 64


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
        self._running = 0, compact.new_zeros(len(compact), self.width, self.width)
        self._independent = [self._last_independent(head) for head in compact]
        self._spanned = [
            self._first_spanned(head, tolerance(self.keys)) if int(rank) == self.width else self.keys
            for head, rank in zip(compact, factor.rank, strict=True)
        ]

    def row_sizes(self) -> Int[Tensor, " query"]:
        """Return how many keys each query sees."""
        return torch.arange(1, self.keys + 1, device=self.compact.device)

    def row_ranks(self) -> Int[Tensor, "head query"]:
        """Return the rank of T restricted to each query's visible keys."""
        ranks = self.row_sizes().clamp(max=self.width).repeat(len(self.compact), 1)
        for head, (independent, spanned) in enumerate(zip(self._independent, self._spanned, strict=True)):
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

    def _assemble(self, rows: slice, weights: Tensor | None, outputs: Tensor) -> Tensor:
        first, stop, _ = rows.indices(self.keys)
        result = self.compact.new_zeros(len(self.compact), stop - first, self.keys)
        split = min(max([*self._spanned, first]), stop)
        for head, independent in enumerate(self._independent):
            for row in range(first, split):
                here = (head, row - first)
                if weights is not None and row < independent:
                    result[here] = weights[here]
                    continue
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
        half = torch.linalg.solve_triangular(lower, block.mT, upper=False)
        start = torch.linalg.solve_triangular(lower, outputs.mT, upper=False)
        identity = torch.eye(end - begin, dtype=block.dtype, device=block.device)
        nested = torch.linalg.cholesky(identity + half.mT @ half)
        # Row i uses the leading i - begin + 1 entries only; both solves leave the others at zero.
        partial = torch.linalg.solve_triangular(nested, half.mT @ start, upper=False).triu()
        update = torch.linalg.solve_triangular(nested.mT, partial, upper=True)
        solved = torch.linalg.solve_triangular(lower.mT, start - half @ update, upper=True)
        return (solved.mT @ self._white[:, :end].mT).tril(begin)

    def _gram_before(self, begin: int) -> Tensor:
        """Return the Gram matrix of the whitened values before a row; rows are usually processed in order."""
        counted, gram = self._running
        if begin < counted:
            counted, gram = 0, torch.zeros_like(gram)
        new = self._white[:, counted:begin]
        self._running = begin, gram + new.mT @ new
        return self._running[1]

    def _last_independent(self, head: Float[Tensor, "key r"]) -> int:
        """Return how many leading rows of T are certified to be linearly independent."""
        low, high = 0, min(self.keys, self.width)
        while low < high:
            middle = (low + high + 1) // 2
            gram = head[:middle] @ head[:middle].mT
            independent = bool(certified_full_rank(gram, self.tolerance(middle)))
            low, high = (middle, high) if independent else (low, middle - 1)
        return low

    def _first_spanned(self, head: Float[Tensor, "key r"], tolerance: float) -> int:
        """Return the first row whose previous keys are certified to span every column of T.

        The certificate uses the Gram trace of the whole text, so that it is valid for all later rows.
        """
        trace = head.square().sum()
        low, high = self.width, self.keys
        while low < high:
            middle = (low + high) // 2
            gram = head[:middle].mT @ head[:middle]
            growth = float(trace / gram.trace().clamp_min(torch.finfo(head.dtype).tiny))
            spanned = bool(certified_full_rank(gram, tolerance, growth))
            low, high = (low, middle) if spanned else (middle + 1, high)
        return low
