"""Rows of attention projected on the column space of T restricted to the keys that each row sees, all heads at once."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from identilens.linalg.decompositions import svd
from identilens.linalg.factor import Factor, certified_rank, inverse_of, least_share
from identilens.linalg.memory import blocks
from identilens.linalg.simplex import ones_outside

BLOCK = 64
"""Causal rows that share a factorisation."""

ACCURATE = 1e8
"""Up to this product of the traces of a Gram matrix and its inverse the inverse is used; beyond it a decomposition."""

Tolerance = Callable[[int], float]


class Decomposed(NamedTuple):
    """Rows that needed a decomposition of their own: their heads and places, and P a on all keys."""

    heads: Int[Tensor, " some"]
    places: Int[Tensor, " some"]
    projected: Float[Tensor, "some key"]


class ProjectedRows(NamedTuple):
    """Rows a = m 1 + w of attention, m the even share of the keys that a row sees, and the row's projector P.

    P a is W z on these keys, with W the whitened values; a itself where the rows of T are independent; or decomposed.

    Attributes:
        even: m.
        moved: Σ P w.
        moved_square: ‖P w‖².
        outside: ‖(I − P) 1‖².
        coordinates: z; 0 in other rows.
        equal: Whether P a = a.
        decomposed: The other rows.
    """

    even: Float[Tensor, " row"]
    moved: Float[Tensor, "head row"]
    moved_square: Float[Tensor, "head row"]
    outside: Float[Tensor, "head row"]
    coordinates: Float[Tensor, "head row k"]
    equal: Bool[Tensor, "head row"]
    decomposed: Decomposed | None = None


class RowProjector(ABC):
    """Projects each row on the column space of T at the keys that it sees (Brunner et al. 2020, Eq. 9).

    Values are whitened: the columns of W span those of T, and heads that share values share W. With w = Wᵀ a and G the
    Gram matrix of W over a row's keys, P a = W G⁻¹ w there, so that sums over rows need no map. W is the basis of the
    factor of all rows of T = F Qᵀ.

    Attributes:
        rank: Rank of T restricted to the last query's keys.
    """

    def __init__(
        self,
        compact: Float[Tensor, "head key r"],
        factor: Factor,
        tolerance: Tolerance,
        visible: Bool[Tensor, "query key"],
    ) -> None:
        self.compact, self.white = compact, factor.basis
        self.tolerance, self.visible = tolerance, visible
        self.keys, self.width = self.white.shape[-2:]
        self.share = max(len(compact), 1) // max(len(self.white), 1)
        self.rank: Int[Tensor, " head"] = factor.rank
        self._coordinates, self._inner = factor.coordinates, factor.inner
        self._full_width = factor.rank == compact.shape[-1]
        self._row_bytes = 0

    def seen(self, rows: slice) -> Bool[Tensor, "row key"]:
        """Return which keys some queries see."""
        return self.visible[rows]

    def row_sizes(self) -> Int[Tensor, " query"]:
        """Return how many keys each query sees."""
        return self.visible.sum(-1)

    @abstractmethod
    def row_ranks(self) -> Int[Tensor, "head query"]:
        """Return the rank of T restricted to each query's visible keys."""

    @abstractmethod
    def times(
        self, rows: slice, found: ProjectedRows, columns: Float[Tensor, "space key column"]
    ) -> Float[Tensor, "head row column"]:
        """Return W z of projected rows times a few columns, 0 in rows without z."""

    @abstractmethod
    def _found(
        self,
        rows: slice,
        whitened: Float[Tensor, "head row k"],
        given: Float[Tensor, "head row key"],
        outputs: bool,
    ) -> ProjectedRows:
        """Return projected rows from Wᵀ a, and where that is not enough from the weights, or from given outputs."""

    def steps(self, queries: int) -> list[slice]:
        """Return the rows, as many at a time as memory allows."""
        held = self._row_bytes + 24 * len(self.compact) * self.keys
        return blocks(queries, held, self.white.device, BLOCK if self._row_bytes == 0 else 1)

    def sums(
        self,
        rows: slice,
        weights: Float[Tensor, "head row key"],
        types: Float[Tensor, "space key type"],
    ) -> tuple[ProjectedRows, Float[Tensor, "2 head row type"], Float[Tensor, "head row r"]]:
        """Return some rows projected, weights and effective attention summed by key type, and effective attention F.

        Weights are float64, and zero on hidden keys.
        """
        # Where T has full rank, F is W times a small matrix; else it is what is left of F that counts, too.
        full = bool(self._full_width.all())
        output = [] if full else [self.compact]
        columns = torch.cat([self.white, types, *output], -1)
        raw = self._heads(self._spaces(weights) @ columns)
        found = self._found(rows, raw[..., : self.width], weights, False)
        received = torch.where(found.equal[..., None], raw, self.times(rows, found, columns))
        if found.decomposed is not None:
            heads, places, projected = found.decomposed
            some = projected[:, None] @ columns[heads // self.share]
            received[heads, places] = some[:, 0]
        end = self.width + types.shape[-1]
        summed = torch.stack([raw, received])[..., self.width : end]
        rebuilt = received[..., : self.width] @ self._inner if full else received[..., end:]
        return found, summed, rebuilt

    def effective(
        self, weights: Float[Tensor, "head query key"]
    ) -> Float[Tensor, "head query key"]:
        """Return effective attention of all rows, zero on hidden keys, in float64."""
        result = weights.to(torch.float64, copy=True)
        for rows in self.steps(result.shape[1]):
            given = result[:, rows]
            whitened = self._heads(self._spaces(given) @ self.white)
            found = self._found(rows, whitened, given, False)
            result[:, rows] = self._assembled(rows, found, given)
        return result

    def from_outputs(
        self, outputs: Float[Tensor, "head query r"]
    ) -> Float[Tensor, "head query key"]:
        """Return effective attention from head outputs in the basis of ``compact``: O F⁺ of each row's keys."""
        result = outputs.new_zeros(*outputs.shape[:2], self.keys, dtype=torch.float64)
        for rows in self.steps(outputs.shape[1]):
            given = outputs[:, rows].double()
            found = self._found(rows, given @ self._coordinates, given, True)
            result[:, rows] = self._assembled(rows, found, None)
        return result

    def _assembled(
        self, rows: slice, found: ProjectedRows, weights: Float[Tensor, "head row key"] | None
    ) -> Float[Tensor, "head row key"]:
        """Return P a of projected rows on all keys."""
        result = self._heads(self._spaces(found.coordinates) @ self.white.mT) * self.seen(rows)
        if weights is not None:
            result = torch.where(found.equal[..., None], weights, result)
        if found.decomposed is not None:
            heads, places, projected = found.decomposed
            result[heads, places] = projected
        return result

    def _spaces(self, heads: Float[Tensor, "head row c"]) -> Float[Tensor, "space all c"]:
        """Return the rows of heads that share values one after another."""
        return heads.reshape(len(self.white), self.share * heads.shape[1], heads.shape[-1])

    def _shared(self, heads: Float[Tensor, "head *rest"]) -> Float[Tensor, "space shared *rest"]:
        return heads.reshape(len(self.white), self.share, *heads.shape[1:])

    def _heads(self, spaces: Float[Tensor, "space all c"]) -> Float[Tensor, "head row c"]:
        return spaces.reshape(len(self.compact), spaces.shape[1] // self.share, spaces.shape[-1])


class FullRows(RowProjector):
    """Every query sees every key, so that G is the identity."""

    def __init__(self, compact: Tensor, factor: Factor, tolerance: Tolerance, queries: int) -> None:
        every = torch.ones(1, compact.shape[1], dtype=torch.bool, device=compact.device)
        super().__init__(compact, factor, tolerance, every.expand(queries, -1))
        self._ones, self._outside = (
            one.repeat_interleave(self.share, 0) for one in (factor.ones, ones_outside(factor))
        )

    def row_ranks(self) -> Int[Tensor, "head query"]:
        """Return the rank of T, for each query."""
        return self.rank[:, None].expand(-1, len(self.visible))

    def times(self, rows: slice, found: ProjectedRows, columns: Tensor) -> Tensor:
        """Return W z times a few columns, of which Wᵀ is taken first."""
        return self._heads(self._spaces(found.coordinates) @ (self.white.mT @ columns))

    def _found(self, rows: slice, whitened: Tensor, given: Tensor, outputs: bool) -> ProjectedRows:
        shifted = whitened - self._ones / self.keys
        outside = self._outside[:, None].expand(whitened.shape[:2])
        return ProjectedRows(
            whitened.new_full(whitened.shape[1:2], 1 / self.keys),
            (shifted * self._ones).sum(-1),
            shifted.square().sum(-1),
            outside,
            whitened,
            torch.zeros_like(outside, dtype=torch.bool),
        )


class MaskedRows(RowProjector):
    """Each query sees some keys: the Gram matrices of a few rows at a time are inverted together.

    P a = a where the leading rows of T up to the row's last key are certified to be independent. A row is decomposed
    where full rank of its T is not certified, or its Gram matrix is badly conditioned.
    """

    def __init__(
        self,
        compact: Tensor,
        factor: Factor,
        tolerance: Tolerance,
        visible: Bool[Tensor, "query key"],
    ) -> None:
        super().__init__(compact, factor, tolerance, visible)
        self._sizes = self.row_sizes()
        self._row_bytes = 24 * len(self.white) * self.width * (self.width + self.keys)
        tolerances = [tolerance(size) for size in self._sizes.tolist()]
        self._tolerances = torch.tensor(tolerances).to(compact)
        last = visible.shape[1] - 1 - visible.int().flip(-1).argmax(-1)
        self._equal = last < self._independent()[:, None]
        # (M Mᵀ)⁻¹ with F = W M: its product with G⁻¹ has the trace of the inverse Gram matrix of T.
        self._back = self._shared(self._coordinates.mT @ self._coordinates)
        if not bool(visible[-1].all()):
            self.rank = certified_rank(compact[:, visible[-1]], tolerances[-1])

    def row_ranks(self) -> Int[Tensor, "head query"]:
        """Return the rank of T at each query's keys: by certificate, or by a decomposition."""
        ranks = self._sizes.repeat(len(self.compact), 1)
        for rows in self.steps(len(self.visible)):
            full = self._inverses(rows)[1]
            ranks[:, rows] = torch.where(full, self.width, ranks[:, rows])
            heads, places = (~full & ~self._equal[:, rows]).nonzero(as_tuple=True)
            for part in self._parts(len(heads)):
                here = heads[part], rows.start + places[part]
                ranks[here] = (self._decompose(*here)[1] > 0).sum(-1)
        return ranks

    def times(self, rows: slice, found: ProjectedRows, columns: Tensor) -> Tensor:
        """Return W z on the keys that each row sees, times a few columns."""
        spread = self._heads(self._spaces(found.coordinates) @ self.white.mT) * self.seen(rows)
        return self._heads(self._spaces(spread) @ columns)

    def _found(self, rows: slice, whitened: Tensor, given: Tensor, outputs: bool) -> ProjectedRows:
        sizes = self._sizes[rows].double()
        even, ones = 1 / sizes, self._ones(rows)[:, None]
        shifted = self._shared(whitened) - even[:, None] * ones
        solve, full = self._inverses(rows)
        solved, along = solve(torch.cat([shifted, ones], 1)).split([self.share, 1], 1)
        outside = (sizes - (ones * along).sum(-1)).clamp_min(0).expand(-1, self.share, -1)
        moved, square = ((shifted * one).sum(-1).flatten(0, 1) for one in (along, solved))
        coordinates = (solved + even[:, None] * along).flatten(0, 1)
        equal = torch.zeros_like(full) if outputs else self._equal[:, rows]
        full = full & ~equal
        moved, square, outside = (
            torch.where(full, one, 0.0) for one in (moved, square, outside.flatten(0, 1))
        )
        coordinates = torch.where(full[..., None], coordinates, 0.0)
        if not outputs:
            total = given.sum(-1) - 1
            own = given.square().sum(-1) - even * (2 * total + 1)
            moved, square = torch.where(equal, total, moved), torch.where(equal, own, square)
        found = ProjectedRows(even, moved, square, outside, coordinates, equal)
        heads, places = (~full & ~equal).nonzero(as_tuple=True)
        if not len(heads):
            return found
        projected = [
            self._decomposed(rows, found, given, outputs, (heads[part], places[part]))
            for part in self._parts(len(heads))
        ]
        return found._replace(decomposed=Decomposed(heads, places, torch.cat(projected)))

    def _decomposed(
        self,
        rows: slice,
        found: ProjectedRows,
        given: Tensor,
        outputs: bool,
        here: tuple[Int[Tensor, " some"], Int[Tensor, " some"]],
    ) -> Float[Tensor, "some key"]:
        """Return P a of rows by a decomposition, from weights or outputs; write the sums of w."""
        basis, sigma, right = self._decompose(here[0], rows.start + here[1])
        if outputs:
            inverse = torch.where(sigma > 0, 1 / torch.where(sigma > 0, sigma, 1.0), 0.0)
            inside = (given[here][:, None] @ right.mT)[:, 0] * inverse
        else:
            share, constant = found.even[here[1], None], basis.sum(1)
            left = (given[here] - share) * self.seen(rows)[here[1]]
            inside = (left[:, None] @ basis)[:, 0]
            found.moved[here] = (inside * constant).sum(-1)
            found.moved_square[here] = inside.square().sum(-1)
            sizes = self._sizes[rows][here[1]]
            found.outside[here] = sizes - constant.square().sum(-1)
            inside = inside + share * constant
        return (basis @ inside[..., None])[..., 0]

    def _ones(self, rows: slice) -> Float[Tensor, "space row k"]:
        """Return Wᵀ 1 of each row's keys."""
        return self.visible[rows].double() @ self.white

    def _parts(self, count: int) -> list[slice]:
        return blocks(count, 32 * self.keys * self.compact.shape[-1], self.white.device)

    def _decompose(
        self, heads: Int[Tensor, " some"], rows: Int[Tensor, " some"]
    ) -> tuple[Float[Tensor, "some key k"], Float[Tensor, "some k"], Float[Tensor, "some k r"]]:
        """Return left singular vectors, singular values and right ones of T at rows' keys; 0 beyond the rank."""
        seen = self.visible[rows][..., None]
        end = int(seen.any(0).nonzero()[-1, 0]) + 1
        basis, sigma, right = svd(self.compact[heads, :end] * seen[:, :end])
        kept = sigma > self._tolerances[rows, None] * sigma[:, :1]
        basis = pad(basis * kept[:, None] * seen[:, :end], (0, 0, 0, self.keys - end))
        return basis, sigma * kept, right

    def _inverses(self, rows: slice) -> tuple[Callable[[Tensor], Tensor], Bool[Tensor, "head row"]]:
        """Return what multiplies rows [space, head, row, k] by G⁻¹, and where it may be used."""
        seen = self.visible[rows]
        common = seen.all(0)
        some = seen.any(0) & ~common
        base, part = self.white[:, common], self.white[:, some]
        gram = (part[:, None] * seen[:, some, None]).mT @ part[:, None]
        lower, usable = _cholesky(gram + (base.mT @ base)[:, None])
        inverse = torch.cholesky_inverse(lower)
        traces = inverse.flatten(-2) @ self._back.flatten(-2).mT
        own = inverse.diagonal(dim1=-2, dim2=-1).sum(-1)
        full = self._certified(rows, torch.where(usable, own, torch.inf), traces.mT.flatten(0, 1))
        return lambda given: (given[..., None, :] @ inverse[:, None])[..., 0, :], full

    def _certified(
        self, rows: slice, own: Float[Tensor, "space row"], traces: Float[Tensor, "head row"]
    ) -> Bool[Tensor, "head row"]:
        """Return where full rank of a row's T is certified, and its G well conditioned.

        The least eigenvalue of a Gram matrix is at least the inverse of its inverse's trace: ``own`` of G, ``traces``
        of that of T.
        """
        seen = self.visible[rows].double()
        squares, own_squares = (
            one.square().sum(-1) @ seen.mT for one in (self.compact, self.white)
        )
        accurate = (own * own_squares < ACCURATE).repeat_interleave(self.share, 0)
        return (
            accurate
            & (traces * squares * self._tolerances[rows].square() < 1)
            & self._full_width[:, None]
        )

    def _independent(self) -> Int[Tensor, " head"]:
        """Return how many leading rows of each head's T are certified to be linearly independent.

        With L Lᵀ their Gram matrix, its least eigenvalue for m rows is at least 1 / ‖L_m⁻¹‖_F², and L_m⁻¹ is the
        leading part of L⁻¹.
        """
        leading = self.compact[:, : self.compact.shape[-1]]
        lower, info = torch.linalg.cholesky_ex(leading @ leading.mT)
        inverse = inverse_of(lower).square().sum(-1).cumsum(-1)
        sizes = torch.arange(1, leading.shape[1] + 1, device=lower.device)
        shares = torch.tensor([least_share(self.tolerance(size)) for size in sizes.tolist()])
        valid = (info[:, None] == 0) | (sizes < info[:, None])
        small = inverse * leading.square().sum(-1).cumsum(-1) * shares.to(lower) < 1
        return (valid & small).long().cumprod(-1).sum(-1)


class CausalRows(MaskedRows):
    """Row i sees the keys up to i: the factors of all blocks of rows are made at once.

    With G the Gram matrix up to a block's end, B the whitened values of its keys, last one first, N Nᵀ = I − B G⁻¹ Bᵀ
    and D = N⁻¹ B G⁻¹: the inverse for row i is G⁻¹ plus the sum of d_k d_kᵀ over the block's keys k > i. Factors are
    nested, so that rows whose own Gram matrix is singular leave the rows after them as they are.
    """

    def __init__(self, compact: Tensor, factor: Factor, tolerance: Tolerance) -> None:
        keys = compact.shape[1]
        visible = torch.ones(keys, keys, dtype=torch.bool, device=compact.device).tril()
        super().__init__(compact, factor, tolerance, visible)
        self._row_bytes, self._count = 0, -(-keys // BLOCK)
        self._blocks = self._blocked(self.white)
        gram = self._blocks.mT @ self._blocks
        self._before = self._cumulative(gram)
        lower, usable = _cholesky(gram + self._before)
        self._last = torch.cholesky_inverse(lower)
        turned = self._blocks.flip(1)
        moved = turned @ self._last
        root, broken = torch.linalg.cholesky_ex(torch.eye(BLOCK).to(moved) - moved @ turned.mT)
        order = torch.arange(BLOCK, device=root.device)
        valid = ((broken[:, None] == 0) | (order < broken[:, None] - 1)) & usable[:, None]
        steps = torch.linalg.solve_triangular(root, moved, upper=False)
        self._steps = torch.where(valid[..., None], steps, 0.0).flip(1)
        sound = torch.cat([usable[:, None], valid[:, :-1]], 1).flip(1)
        own = _trace(self._last) + _later(self._steps.square().sum(-1))
        own = torch.where(sound, own, torch.inf).unflatten(0, (len(self.white), self._count))
        some = self._steps.reshape(len(self.white), 1, self._count * BLOCK, self.width)
        growth = ((some @ self._back) * some).sum(-1).unflatten(-1, (self._count, BLOCK))
        ends = (
            self._last.reshape(len(self.white), self._count, self.width**2)
            @ self._back.flatten(2).mT
        )
        traces = (ends.mT[..., None] + _later(growth)).flatten(2).flatten(0, 1)
        self._full = self._certified(slice(None), own.flatten(1)[:, :keys], traces[:, :keys])
        self._summed = self.white.cumsum(1)

    def times(self, rows: slice, found: ProjectedRows, columns: Tensor) -> Tensor:
        """Return W z times a few columns, from their products with W before each block."""
        blocked, place = self._blocked(columns), self._place(rows)
        before = self._cumulative(self._blocks.mT @ blocked)
        before, own, blocked = (self._at(place, one) for one in (before, self._blocks, blocked))
        solved = self._in_blocks(rows, self._shared(found.coordinates))
        until = torch.ones(BLOCK, BLOCK).to(own).tril().repeat(self.share, 1)
        received = solved @ before + ((solved @ own.mT) * until) @ blocked
        return self._cut(rows, received).flatten(0, 1)

    def _ones(self, rows: slice) -> Float[Tensor, "space row k"]:
        return self._summed[:, rows]

    def _inverses(self, rows: slice) -> tuple[Callable[[Tensor], Tensor], Bool[Tensor, "head row"]]:
        """Return G⁻¹ as in all masked rows, once refined: errors of a step are those of G_i alone."""
        kept = self._before, self._blocks, self._last, self._steps
        before, own, last, steps = (self._at(self._place(rows), one) for one in kept)

        def solve(blocked: Tensor, until: Tensor) -> Tensor:
            return blocked @ last + ((blocked @ steps.mT) * (1 - until)) @ steps

        def refined(given: Float[Tensor, "space head row k"]) -> Float[Tensor, "space head row k"]:
            blocked = self._in_blocks(rows, given)
            until = torch.ones(BLOCK, BLOCK).to(own).tril().repeat(given.shape[1], 1)
            solved = solve(blocked, until)
            left = blocked - solved @ before - ((solved @ own.mT) * until) @ own
            return self._cut(rows, solved + solve(left, until))

        return refined, self._full[:, rows]

    def _blocked(self, keys: Float[Tensor, "space key c"]) -> Float[Tensor, "blocks own c"]:
        filled = pad(keys, (0, 0, 0, -self.keys % BLOCK))
        return filled.reshape(len(keys) * self._count, BLOCK, keys.shape[-1])

    def _cumulative(self, blocks: Float[Tensor, "blocks k c"]) -> Float[Tensor, "blocks k c"]:
        """Return the sum over all blocks of a space before each."""
        by_space = blocks.unflatten(0, (len(self.white), self._count))
        return (by_space.cumsum(1) - by_space).flatten(0, 1)

    def _place(self, rows: slice) -> slice:
        first, stop, _ = rows.indices(self.keys)
        return slice(first // BLOCK, -(-stop // BLOCK))

    def _at(self, place: slice, blocks: Tensor) -> Tensor:
        return blocks.unflatten(0, (len(self.white), self._count))[:, place].flatten(0, 1)

    def _in_blocks(
        self, rows: slice, given: Float[Tensor, "space head row c"]
    ) -> Float[Tensor, "blocks own c"]:
        """Return the rows of a space's heads by block."""
        first, stop, _ = rows.indices(self.keys)
        filled = pad(given, (0, 0, first % BLOCK, -stop % BLOCK)).unflatten(2, (-1, BLOCK))
        return filled.transpose(1, 2).flatten(2, 3).flatten(0, 1)

    def _cut(self, rows: slice, blocked: Tensor) -> Float[Tensor, "space head row c"]:
        first, stop, _ = rows.indices(self.keys)
        place, start = self._place(rows), first % BLOCK
        by_block = blocked.unflatten(0, (len(self.white), place.stop - place.start))
        rows_of = by_block.unflatten(2, (-1, BLOCK)).transpose(1, 2).flatten(2, 3)
        return rows_of[:, :, start : start + stop - first]


def _cholesky(
    gram: Float[Tensor, "*batch k k"],
) -> tuple[Float[Tensor, "*batch k k"], Bool[Tensor, "*batch"]]:
    """Return Cholesky factors, the identity where there is none, and where there is one."""
    lower, info = torch.linalg.cholesky_ex(gram)
    usable = info == 0
    return torch.where(usable[..., None, None], lower, torch.eye(gram.shape[-1]).to(gram)), usable


def _trace(matrices: Float[Tensor, "*batch k k"]) -> Float[Tensor, "*batch 1"]:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)


def _later(rows: Float[Tensor, "*batch row"]) -> Float[Tensor, "*batch row"]:
    """Return the sum over all later rows."""
    return rows.flip(-1).cumsum(-1).flip(-1) - rows
