"""Effective attention under other masks (windows, prefixes): the Gram matrices of a chunk of rows at once."""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.linalg.factor import certified_full_rank, certified_rank, factorise
from identilens.linalg.row_sums import AssembledRows, ProjectedRows, RowSums

Tolerance = Callable[[int], float]
_CHUNK = 64


class IrregularRows(AssembledRows):
    """Row i projects on the column space of T restricted to the keys that query i may use.

    The Gram matrices of a chunk of rows are computed over the keys that the chunk sees, and factorised together. A row
    is factorised alone if it sees no more keys than T has columns, or if full rank of its Gram matrix is not certified.
    The arguments are those of `CausalRows`, and the mask.
    """

    def __init__(
        self,
        compact: Float[Tensor, "head key r"],
        visible: Bool[Tensor, "query key"],
        tolerance: Tolerance,
    ):
        self.compact, self.visible, self.tolerance = compact, visible, tolerance

    @property
    def rank(self) -> Int[Tensor, " head"]:
        """Rank of T restricted to the last query's keys."""
        return certified_rank(self.compact[:, self.visible[-1]], self._tolerance(self.visible[-1]))

    def row_sizes(self) -> Int[Tensor, " query"]:
        """Return how many keys each query sees."""
        return self.visible.sum(-1)

    def row_ranks(self) -> Int[Tensor, "head query"]:
        """Return the rank of T restricted to each query's visible keys."""
        ranks = torch.full(
            (len(self.compact), len(self.visible)), self.compact.shape[-1], dtype=torch.int64
        )
        for head, begin, keys, _, certified in self._chunks(0, len(self.visible)):
            for row in torch.nonzero(~certified).flatten().tolist():
                seen = self.visible[begin + row, keys]
                ranks[head, begin + row] = certified_rank(
                    self.compact[head, keys][seen], self._tolerance(seen)
                )
        return ranks.to(self.compact.device)

    def seen(self, rows: slice) -> Bool[Tensor, "row key"]:
        """Return which keys some queries see."""
        return self.visible[rows]

    def sums(
        self,
        rows: slice,
        weights: Float[Tensor, "head row key"],
        raw: Float[Tensor, "head row type"],
        types: Float[Tensor, "head key type"],
        *,
        heads: slice = slice(None),
        overwrite: bool = False,
        back: Float[Tensor, "head k column"] | None = None,
    ) -> ProjectedRows:
        """Return sums over effective attention of some rows, which is computed; arguments as in `FullRows.sums`."""
        given, seen = weights.double(), self.visible[rows]
        ones = seen.double().expand_as(given)
        effective, effective_ones = (self.effective(rows, one) for one in (given, ones))
        even = 1 / self.row_sizes()[rows].double()
        moved, moved_effective = (
            (one - even[:, None]).masked_fill(~seen, 0.0) for one in (given, effective)
        )
        sums = RowSums(
            even=even,
            raw=moved.sum(-1),
            raw_square=moved.square().sum(-1),
            effective=moved_effective.sum(-1),
            effective_square=moved_effective.square().sum(-1),
            cross=(moved * moved_effective).sum(-1),
            outside=(ones - effective_ones).square().sum(-1),
        )
        return ProjectedRows(
            sums, effective @ types, list(range(weights.shape[1])), effective @ self.compact
        )

    def _assemble(self, rows: slice, weights: Tensor | None, outputs: Tensor) -> Tensor:
        first, stop, _ = rows.indices(len(self.visible))
        result = self.compact.new_zeros(len(self.compact), stop - first, self.compact.shape[-2])
        for head, begin, keys, lower, certified in self._chunks(first, stop):
            local = slice(begin - first, begin - first + len(lower))
            values, seen = self.compact[head, keys], self.visible[begin : begin + len(lower), keys]
            given = (
                outputs[head, local]
                if weights is None
                else weights[head, local, keys] * seen @ values
            )
            solved = torch.cholesky_solve(given[..., None], lower)[..., 0]
            result[head, local, keys] = solved @ values.mT * seen
            for row in torch.nonzero(~certified).flatten().tolist():
                part, here = seen[row], (head, local.start + row)
                factor = factorise(values[part], self._tolerance(part))
                effective = factor.effective(
                    None if weights is None else weights[*here, keys][part], outputs[here]
                )
                result[*here, keys] = torch.zeros_like(part, dtype=result.dtype).masked_scatter(
                    part, effective
                )
        return result

    def _chunks(self, first: int, stop: int) -> Iterator[tuple[int, int, slice, Tensor, Tensor]]:
        """Yield (head, first row, keys the chunk sees, Cholesky factors, which of them are certified)."""
        width = self.compact.shape[-1]
        for begin in range(first, stop, _CHUNK):
            seen = self.visible[begin : min(begin + _CHUNK, stop)]
            used = torch.nonzero(seen.any(0)).flatten()
            keys = slice(int(used[0]), int(used[-1]) + 1)
            sizes = seen.sum(-1)
            tolerance = self.tolerance(int(sizes.max()))
            for head, compact in enumerate(self.compact):
                values = compact[keys]
                parts = (values[row] for row in seen[:, keys])
                gram = torch.stack([part.mT @ part for part in parts])
                certified = certified_full_rank(gram, tolerance)
                # The identity elsewhere keeps later solves finite.
                gram = torch.where(certified[:, None, None], gram, torch.eye(width).to(gram))
                yield (
                    head,
                    begin,
                    keys,
                    torch.linalg.cholesky_ex(gram).L,
                    certified & (sizes > width),
                )

    def _tolerance(self, seen: Tensor) -> float:
        return self.tolerance(int(seen.sum()))
