"""Rows of attention under a mask, projected on the column space of T restricted to the keys that each row sees."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot, pad

from identilens.linalg.factor import (
    cholesky,
    factorise,
    inverse_of,
    least_share,
    smaller_gram,
    squared_norm,
)
from identilens.linalg.memory import blocks
from identilens.linalg.rows import BLOCK, RowProjector

SAME = 1e-14
"""Two rows of T count as one row up to this difference, as a share of the largest entry: rounding in float64."""

ACCURATE = 1e8
"""Up to this product of the traces of a Gram matrix and its inverse the inverse is used; beyond it a decomposition."""

STEADY = 1e6
"""Up to this product, solutions by nested factors have as many digits as they need without being refined."""


class MaskedRows(RowProjector):
    """Each query sees some keys: the Gram matrices of a few rows at a time are inverted together.

    P a is the mean of a over keys with the same row of T where the different rows of T up to the row's last key are
    certified to be independent. A row is decomposed where full rank of its T is not certified, or its Gram matrix is
    badly conditioned.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._row_bytes = 24 * len(self.white) * self.width * (self.width + self.keys)
        self._tolerances = self.tolerance(self.sizes)
        last = self.keys - 1 - self.visible.byte().flip(-1).argmax(-1)
        self._first, independent = self._independent()
        self._equal = last < independent[:, None]
        keys = torch.arange(self._first.shape[1], device=last.device)
        self._repeats = (self._first < keys).any(-1, keepdim=True)
        # (M Mᵀ)⁻¹ with F = W M: its product with G⁻¹ has the trace of the inverse Gram matrix of T.
        coordinates = self.factor.coordinates
        back = coordinates.mT @ coordinates
        self._back = back.flatten(1).unflatten(0, (len(self.white), self.share)).mT
        if self.sizes[-1] < self.keys:
            self.rank = self._ranks(slice(len(self.visible) - 1, None))[:, 0]

    def row_ranks(self) -> Int[Tensor, "head query"]:
        """Return the rank at each query's keys: by certificate, or by a decomposition."""
        return torch.cat([self._ranks(rows) for rows in self.steps(len(self.visible))], 1)

    def _ranks(self, rows: slice) -> Int[Tensor, "head row"]:
        keys = self._first.shape[1]
        leading = self.visible[rows, :keys].double()
        different = (leading @ one_hot(self._first, keys).double() > 0).sum(-1)
        full = self._inverses(rows)[1]
        ranks = torch.where(full, self.width, different)
        heads, places = (~full & ~self._equal[:, rows]).nonzero(as_tuple=True)
        for part in self._parts(len(heads)):
            here = heads[part], places[part]
            ranks[here], _ = self._decompose(here[0], rows.start + here[1])
        return ranks

    def project(self, rows: slice, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return W G⁻¹ Wᵀ a, means over keys with the same row of T, or a projection by a decomposition."""
        solve, full = self._inverses(rows)
        keys, sizes, equal = weights.shape[-1], self.sizes[rows], self._equal[:, rows]
        white, ones = self.white[:, :keys], self._ones(rows)[:, None]
        whitened = (self._spaces(weights) @ white).unflatten(1, (self.share, -1))
        solved, along = solve(torch.cat([whitened, ones], 1)).split([self.share, 1], 1)
        spread = self._heads(solved.flatten(1, 2) @ white.mT)
        projected = spread.mul_(self.visible[rows, :keys])
        projected[equal] = self._means(rows, weights)[equal]
        left = (sizes - (ones * along).sum(-1)).clamp_min(0).expand(-1, self.share, -1)
        outside = left.flatten(0, 1).masked_fill(equal, 0.0)
        heads, places = (~full & ~equal).nonzero(as_tuple=True)
        for part in self._parts(len(heads)):
            here = heads[part], places[part]
            _, basis = self._decompose(here[0], rows.start + here[1])
            inside = weights[here][:, None] @ basis[:, :keys]
            projected = projected.index_put(here, (inside @ basis[:, :keys].mT)[:, 0])
            outside[here] = sizes[here[1]] - basis.sum(1).square().sum(-1)
        return projected, outside

    def _totals(
        self, rows: slice, of_keys: Float[Tensor, "space key c"]
    ) -> Float[Tensor, "space row c"]:
        """Return sums over each row's keys."""
        return self.visible[rows].double() @ of_keys

    def _ones(self, rows: slice) -> Tensor:
        return self._totals(rows, self.white)

    def _parts(self, count: int) -> list[slice]:
        return blocks(count, 32 * self.keys * self.compact.shape[-1], self.white.device)

    def _decompose(
        self, heads: Int[Tensor, " some"], rows: Int[Tensor, " some"]
    ) -> tuple[Int[Tensor, " some"], Float[Tensor, "some key k"]]:
        """Return the rank of T at rows' keys, and a basis on all keys."""
        mask = self.visible[rows][..., None]
        end = self.end(rows)
        factor = factorise(self.compact[heads, :end] * mask[:, :end], self._tolerances[rows])
        return factor.rank, pad(factor.basis * mask[:, :end], (0, 0, 0, self.keys - end))

    def _means(self, rows: slice, weights: Tensor) -> Float[Tensor, "head row key"]:
        """Return weights as means over leading keys with the same row of T."""
        if not (self._equal[:, rows] & self._repeats).any():
            return weights
        keys = min(self._first.shape[1], weights.shape[-1])
        classes = one_hot(self._first[:, :keys], keys).double()
        mask = self.visible[rows, :keys].double()
        shares = weights[..., :keys] @ classes / (mask @ classes).clamp_min(1)
        return torch.cat([shares @ classes.mT * mask, weights[..., keys:]], -1)

    def _inverses(self, rows: slice) -> tuple[Callable[[Tensor], Tensor], Bool[Tensor, "head row"]]:
        """Return what multiplies rows [space, head, row, k] by G⁻¹, and where it may be used."""
        mask = self.visible[rows]
        common = mask.all(0)
        some = mask.any(0) & ~common
        base, part = self.white[:, common], self.white[:, some]
        gram = (part[:, None] * mask[:, some, None]).mT @ part[:, None]
        lower, usable = cholesky(gram + (base.mT @ base)[:, None])
        inverse = torch.cholesky_inverse(lower)
        traces = inverse.flatten(-2) @ self._back
        trace = inverse.diagonal(dim1=-2, dim2=-1).sum(-1)
        trace = torch.where(usable, trace, torch.inf)
        full, _ = self._certified(rows, trace, traces.mT.flatten(0, 1))
        return lambda vectors: (vectors[..., None, :] @ inverse[:, None])[..., 0, :], full

    def _certified(
        self, rows: slice, trace: Float[Tensor, "space row"], traces: Float[Tensor, "head row"]
    ) -> tuple[Bool[Tensor, "head row"], Float[Tensor, "head row"]]:
        """Return where full rank of a row's T is certified and its G well conditioned, and the condition.

        The least eigenvalue of a Gram matrix is at least the inverse of its inverse's trace: ``trace`` of G, ``traces``
        of that of T. The condition is the product of both traces of G.
        """
        squares, own_squares = (
            self._totals(rows, part.norm(dim=-1, keepdim=True).square())[..., 0]
            for part in (self.compact, self.white)
        )
        condition = (trace * own_squares).repeat_interleave(self.share, 0)
        full_rank = traces * squares * self._tolerances[rows].square() < 1
        full_rank &= self.factor.rank[:, None] == self.compact.shape[-1]
        return full_rank & (condition < ACCURATE), condition

    def _independent(self) -> tuple[Int[Tensor, "head lead"], Int[Tensor, " head"]]:
        """Return each leading key's first key with the same row of T, and up to which different rows are independent.

        Sums of a row's entries with weights of no pattern tell which may be the same. The Gram matrix of the different
        rows is factorised, shifted by what every eigenvalue must exceed: a leading part that has a factor is certified.
        """
        lead = self.compact[:, : 2 * self.compact.shape[-1]]
        keys, order = lead.shape[1], torch.arange(lead.shape[1], device=lead.device)
        most = SAME * lead.abs().amax((-2, -1), keepdim=True)
        sums = lead @ torch.arange(1, lead.shape[-1] + 1).to(lead).cos()
        near = (sums[:, :, None] - sums[:, None]).abs() <= most * lead.shape[-1]
        first = near.byte().argmax(-1)
        gap = (lead - lead.take_along_dim(first[..., None], 1)).abs().amax(-1)
        first = torch.where(gap <= most[..., 0], first, order)
        # One more than can be independent.
        ahead = (first == order).byte().argsort(dim=-1, descending=True, stable=True)
        ahead = ahead[:, : self.compact.shape[-1] + 1]
        chosen = first.gather(-1, ahead) == ahead
        different = chosen[..., None] * lead.take_along_dim(ahead[..., None], 1)
        gram = different @ different.mT
        limit = least_share(self.tolerance(keys)) * squared_norm(smaller_gram(lead)).sqrt()
        shift = torch.where(chosen, -limit[:, None], squared_norm(lead)[:, None])
        gram.diagonal(dim1=-2, dim2=-1).add_(shift)
        info = torch.linalg.cholesky_ex(gram).info[:, None]
        dependent = ahead.gather(-1, (info - 1).clamp_min(0))
        return first, torch.where(info == 0, keys, dependent)[:, 0]


class CausalRows(MaskedRows):
    """Row i sees the keys up to i: the factors of all blocks of rows are made at once.

    With G the Gram matrix up to a block's end, B the whitened values of its keys, last one first, N Nᵀ = I − B G⁻¹ Bᵀ
    and D = N⁻¹ B G⁻¹: the inverse for row i is G⁻¹ plus the sum of d_k d_kᵀ over the block's keys k > i. Factors are
    nested, so that rows whose own Gram matrix is singular leave the rows after them as they are.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        keys, self._row_bytes = self.keys, 0
        # Rows of no more keys than the values have dimensions are their own projection, or decomposed.
        self._lead = min(self.width, keys) // BLOCK * BLOCK
        lead, white = self.white.split([self._lead, keys - self._lead], 1)
        white = pad(white, (0, 0, 0, -keys % BLOCK)).unflatten(1, (-1, BLOCK))
        gram = white.mT @ white
        before = (lead.mT @ lead)[:, None] + gram.cumsum(1) - gram
        lower, usable = cholesky(before + gram)
        inverse = inverse_of(lower)
        last = inverse.mT @ inverse
        turned = white.flip(2)
        moved = turned @ last
        same = torch.eye(BLOCK).to(moved)
        root, broken = torch.linalg.cholesky_ex(same - moved @ turned.mT)
        order, broken = torch.arange(BLOCK, device=root.device), broken[..., None]
        valid = ((broken == 0) | (order < broken - 1)) & usable[..., None]
        steps = torch.linalg.solve_triangular(root, moved, upper=False)
        steps = torch.where(valid[..., None], steps, 0.0).flip(2)
        self._blocked = before, white, last, steps
        sound = torch.cat([usable[..., None], valid[..., :-1]], -1).flip(-1)
        trace = last.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
        trace = trace + _later(steps.square().sum(-1))
        trace = torch.where(sound, trace, torch.inf).flatten(1)
        along = self.factor.coordinates.mT.unflatten(0, (len(white), self.share))
        growth = torch.linalg.vector_norm(steps.flatten(1, 2)[:, None] @ along, dim=-1).square()
        ends = (last.flatten(2) @ self._back).mT[..., None]
        traces = (ends + _later(growth.unflatten(-1, (-1, BLOCK)))).flatten(2).flatten(0, 1)
        trace, traces = (
            pad(part, (self._lead, 0), value=value)[:, :keys]
            for part, value in ((trace, 0.0), (traces, torch.inf))
        )
        self._full, self._condition = self._certified(slice(None), trace, traces)
        self._equal |= self._full & (self.sizes <= self.width)
        self._sums = self._totals(slice(None), self.white)

    def _ones(self, rows: slice) -> Tensor:
        return self._sums[:, rows]

    def _totals(self, rows: slice, of_keys: Tensor) -> Tensor:
        # Along the last axis in memory a GPU adds up many times as fast.
        return of_keys.mT.cumsum(-1).mT[:, rows]

    def _inverses(self, rows: slice) -> tuple[Callable[[Tensor], Tensor], Bool[Tensor, "head row"]]:
        """Return G⁻¹ as in all masked rows, refined where a row needs it: errors of a step are those of G_i alone."""
        refines = (self._condition[:, rows] > STEADY).any()
        ahead = max(self._lead - rows.start, 0)
        start, stop = rows.start + ahead - self._lead, rows.stop - self._lead
        part = slice(start // BLOCK, -(-stop // BLOCK))
        before, white, last, steps = (kept[:, part] for kept in self._blocked)
        later = white.new_ones(BLOCK, BLOCK).triu(1).repeat(self.share + 1, 1)

        def solve(blocked: Tensor) -> Tensor:
            return (blocked @ last).add_((blocked @ steps.mT).mul_(later) @ steps)

        def refined(
            vectors: Float[Tensor, "space head row k"],
        ) -> Float[Tensor, "space head row k"]:
            filled = pad(vectors, (0, 0, -ahead, -vectors.shape[2] % BLOCK))
            by_block = filled.unflatten(2, (-1, BLOCK)).transpose(1, 2)
            blocked = by_block.flatten(2, 3)
            solved = solve(blocked)
            if refines:
                inside = (solved @ white.mT).mul_(1 - later) @ white
                solved += solve(blocked - inside.add_(solved @ before))
            solved = solved.reshape(by_block.shape).transpose(1, 2).flatten(2, 3)
            return pad(solved, (0, 0, ahead, 0))[:, :, : vectors.shape[2]]

        return refined, self._full[:, rows]


def _later(rows: Float[Tensor, "*batch row"]) -> Float[Tensor, "*batch row"]:
    """Return the sum over all later rows."""
    return rows.flip(-1).cumsum(-1).flip(-1) - rows
