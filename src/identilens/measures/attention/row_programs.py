"""The programs of rows: ends of their weights and of functionals, the key that is first, and radii."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot, pad

from identilens.errors import InputError
from identilens.linalg import HeadValues, ProjectedValues, SimplexSpace, head_values
from identilens.linalg.certificate import Certificate
from identilens.linalg.interior import Optima, SharedPrograms
from identilens.measures.attention.checks import check_precision, checked_weights

Seen = Float[Tensor, "row seen"]
"""A number of each key that some of the rows see, in each row."""

ORDER_MARGIN = 1e-9
"""A key is certified above another only when every alternative keeps them this far apart."""

ALMOST_ZERO = 1e-9
"""A weight that some alternative has below this counts as one that may be zero."""

PAIRS = 64
"""Programs of pairs of keys of a row that run together."""

NUMBERS = 2**20
"""Numbers of a row in the costs of programs that run together, and four times in the alternatives that are kept."""

_NEWTON, _SETTLED, _RADIUS = 20, 0.01, 1e-8
"""Steps in the search of a radius at most, the relative step after which it ends, and the accuracy of its programs."""


@dataclass(frozen=True)
class Ends:
    """The interval of each weight of rows over all alternatives.

    Attributes:
        lo: Proven least values.
        hi: Proven greatest values.
        gap: Largest distance between an end and an alternative that was found for it.
        met: Alternatives that were found, the row itself first; of many or long rows only some.
    """

    lo: Seen
    hi: Seen
    gap: Float[Tensor, " row"]
    met: Float[Tensor, "row alternative seen"]


def allowed_change(
    rows: Float[Tensor, "*head row key"], T: ProjectedValues, tolerance: float
) -> Float[Tensor, "*head row"]:
    """Return the tolerance times ‖a T‖ of each row: changes of the output up to this count as none.

    Raises:
        InputError: For a tolerance that is no share of a length.
    """
    if not isinstance(tolerance, Real) or not 0 <= tolerance < torch.inf:
        raise InputError(
            "expected a tolerance of 0 or more, the length of a change of the output over the output's own; got "
            f"{tolerance}."
        )
    return tolerance * torch.linalg.vector_norm(rows @ T.compact, dim=-1)


def movable_keys(space: SimplexSpace, allowed: Float[Tensor, "*row"]) -> Bool[Tensor, "*row key"]:
    """Return which keys take part in some alternative; the others keep their weight."""
    alone = space.visible.sum(-1, keepdim=True) == 1
    return torch.where(allowed[..., None] > 0, space.visible & ~alone, space.movable)


def optima_of(
    space: SimplexSpace,
    inside: Float[Tensor, "head row key"],
    costs: Float[Tensor, "head row program key"],
    allowed: Float[Tensor, "head row"],
) -> Optima:
    """Return the least values of costs over all alternatives of rows, with the multipliers that prove them.

    A row is an alternative of its own: no bound is above its costs, and a head without others needs no program.

    Raises:
        NumericalError: A program whose answer cannot be certified.
    """
    cost = (costs @ inside[..., None])[..., 0]
    # A weight that never moves is a mixture of the outputs and of the sum: its row of B proves that.
    alone = (
        cost.clone(),
        cost.clone(),
        inside[:, :, None].expand_as(costs).clone(),
        costs @ space.kept[:, None],
    )
    moving = movable_keys(space, allowed.amax(-1)).any(-1).nonzero()[:, 0]
    if len(moving):
        rows, count = costs.shape[1:3]
        reach = allowed[moving, :, None] / space.scales[moving, None]
        each = (part.repeat_interleave(count, 1) for part in (inside[moving], reach))
        programs = SharedPrograms(space.kept[moving], space.blocks)
        optima = programs.minimise(costs[moving].flatten(1, 2), *each)
        parts = optima.values, optima.bounds, optima.points, optima.multipliers
        for full, part in zip(alone, parts, strict=True):
            full[moving] = part.unflatten(1, (rows, count))
    values, bounds, points, multipliers = alone
    return Optima(values, torch.minimum(bounds, cost), points, multipliers)


@dataclass(frozen=True)
class RowPrograms:
    """Programs over the alternatives of checked rows, all rows together.

    Attributes:
        space: What may change in each row, on the keys that some of them see.
        inside: The weights.
        keys: Positions of these keys.
        allowed: Changes of the rows' output up to these lengths count as none.
        asked: The keys that are asked about.
    """

    space: SimplexSpace
    inside: Seen
    keys: Int[Tensor, " seen"]
    allowed: Float[Tensor, " row"]
    asked: Bool[Tensor, "row seen"]

    @classmethod
    def of(
        cls,
        rows: Float[Tensor, "row key"],
        space: SimplexSpace,
        allowed: Float[Tensor, " row"],
        among: Bool[Tensor, "row key"] | None = None,
    ) -> "RowPrograms":
        """Return the programs of rows, given their spaces; only keys ``among`` some are asked about, all by default."""
        keys = space.visible.any(0).nonzero()[:, 0]
        visible = space.visible[:, keys]
        asked = visible if among is None else among[:, keys] & visible
        blocks = None if space.blocks is None else space.blocks[keys]
        space = replace(space, kept=space.kept[:, keys], visible=visible, blocks=blocks)
        return cls(space, rows[:, keys], keys, allowed, asked)

    def optima(
        self,
        costs: Float[Tensor, "part program seen"],
        part: Int[Tensor, " part"] | slice = slice(None),
    ) -> Optima:
        """Return the least values of linear costs over all alternatives of some rows: see `optima_of`."""
        inside, allowed = self.inside[part, None], self.allowed[part, None]
        optima = optima_of(self.space.of(part), inside, costs[:, None], allowed)
        return Optima(*(field[:, 0] for field in vars(optima).values()))

    def between(
        self, costs: Float[Tensor, "row functional seen"]
    ) -> tuple[Float[Tensor, "row functional"], ...]:
        """Return the proven ends of linear functionals over all alternatives, and how near the programs came."""
        optima = self.optima(torch.cat([costs, -costs], 1))
        lo, minus_hi = optima.bounds.chunk(2, 1)
        return lo, -minus_hi, torch.maximum(*(optima.values - optima.bounds).chunk(2, 1))

    def ends(self) -> Ends:
        """Return the least and the greatest value of each weight.

        A weight that some alternative has at zero needs no program for the least.
        """
        movable = movable_keys(self.space, self.allowed) & self.asked
        lo, hi, least = (
            self.inside.masked_fill(movable, 0.0),
            self.inside.clone(),
            self.inside.clone(),
        )
        gap, met = torch.zeros_like(self.allowed), [self.inside[:, None]]
        size = max(1, NUMBERS // len(self.keys))
        for sign, end in ((-1.0, hi), (1.0, lo)):
            open_ = movable.clone()
            while (open_ := open_ & ((least > ALMOST_ZERO) | (sign < 0))).any():
                part, keys = some_of(open_, size)
                optima = self.optima(sign * self.units(keys), part)
                end[part] = end[part].scatter(1, keys, sign * optima.bounds)
                open_[part] = open_[part].scatter(1, keys, False)
                gap[part] = torch.maximum(gap[part], (optima.values - optima.bounds).amax(1))
                least[part] = torch.minimum(least[part], optima.points.amin(1))
                if sum(points.shape[1] for points in met) < 4 * size:
                    points = self.inside[:, None].repeat(1, keys.shape[1], 1)
                    met.append(points.index_copy(0, part, optima.points))
        lo, hi = torch.minimum(lo, self.inside), torch.maximum(hi, self.inside).clamp_max(1.0)
        return Ends(lo, hi, gap, torch.cat(met, 1))

    def certificate(self, row: int, functional: Float[Tensor, " seen"]) -> Certificate:
        """Return both ends of a linear functional of a row over all alternatives, with what proves them."""
        space, part = self.space, torch.tensor([row], device=self.keys.device)
        optima = self.optima(torch.stack([functional, -functional])[None], part)
        free, visible = space.scales[row].isfinite(), space.visible[row]
        scales, blocks = space.scales[row, free], space.blocks
        # The columns of constants are left out of F: the sum of a row never changes, so they prove nothing more.
        parts = (
            self.inside[row, visible],
            space.kept[row][visible][:, free] * scales,
            (torch.zeros_like(self.keys) if blocks is None else blocks)[visible],
            functional[visible],
            self.allowed[row],
            optima.multipliers[0][:, free] / scales,
            optima.bounds[0] * optima.bounds.new_tensor([1.0, -1.0]),
            optima.points[0][:, visible],
        )
        return Certificate(*(part.cpu() for part in parts))

    def top(self, ends: Ends) -> Int[Tensor, " row"]:
        """Return the position of the key that no alternative puts second, −1 for none; the ends spare programs."""
        first = self.inside.where(self.asked, -1.0).argmax(1, keepdim=True)
        rivals = self.asked & (ends.hi >= ends.lo.gather(1, first) - ORDER_MARGIN)
        rivals = rivals.scatter(1, first, False)
        ahead = ends.met.take_along_dim(first[:, None], 2) > ends.met + ORDER_MARGIN
        apart = (ahead | ~rivals[:, None]).flatten(1).all(1)
        while (rivals := rivals & apart[:, None]).any():
            part, keys = some_of(rivals, PAIRS)
            bounds = self.optima(self.units(first[part]) - self.units(keys), part).bounds
            apart[part] &= (bounds > ORDER_MARGIN).all(1)
            rivals[part] = rivals[part].scatter(1, keys, False)
        return self.keys[first[:, 0]].where(apart, -1)

    def proposal(
        self, cost: Float[Tensor, " seen"], slope: Float[Tensor, " seen"], already: float
    ) -> Float[Tensor, " seen"]:
        """Return weights of nearly least cost in the first row, not certified; the output has changed ``already``.

        The square of its change's length, to be at most that of the allowed one, rises by twice the ``slope`` with the
        weights.
        """
        kept, scales = self.space.kept[0], self.space.scales[0]
        offset = slope @ kept / scales
        square = float(self.allowed[0]) ** 2 - already**2 + float(offset.square().sum())
        right = self.inside[0] @ kept - offset / scales
        reach = max(square, 0.0) ** 0.5 / scales
        return SharedPrograms(kept, self.space.blocks).proposal(cost, right, reach)

    def farthest(self, ends: Ends) -> Seen:
        """Return the alternative of each row that was met and puts most of the asked attention elsewhere."""
        moved = (self.inside[:, None] - ends.met).clamp_min(0.0) * self.asked[:, None]
        return ends.met.take_along_dim(moved.sum(2).argmax(1)[:, None, None], 1)[:, 0]

    def length(self, points: Seen) -> Float[Tensor, " row"]:
        """Return the lengths by which alternatives change the output, without directions that count as none."""
        scales = self.space.scales
        along = ((points - self.inside)[:, None] @ self.space.kept)[:, 0]
        return torch.linalg.vector_norm(along * scales.masked_fill(scales.isinf(), 0.0), dim=1)

    def radius(
        self,
        costs: Float[Tensor, "part program seen"],
        limits: Float[Tensor, "part program"],
        part: Int[Tensor, " part"],
    ) -> Float[Tensor, "part program"]:
        """Return up to which length of a change of the output each least cost is proven to reach its limit.

        It must do so at the allowed length. The least cost is convex in that length, and the multipliers of a program
        bound it by a line: Newton's method stays on the proven side. Signs and sums alone may prove it for any length.
        """
        # Programs are solved to an absolute accuracy.
        size = costs.abs().amax(2).clamp_min(torch.finfo(costs.dtype).tiny)
        costs, limits, inside = costs / size[..., None], limits / size, self.inside[part]
        kept, scales = self.space.kept[part], self.space.scales[part, None]
        hidden = ~self.space.visible[part, None]
        alone = costs.masked_fill(hidden, torch.inf).amin(2) * inside.sum(1, keepdim=True) >= limits
        reached = self.allowed[part, None].expand_as(limits).masked_fill(alone, torch.inf)
        open_, programs = ~alone, SharedPrograms(kept, self.space.blocks)
        for _ in range(_NEWTON):
            if not open_.any():
                break
            rows, which = some_of(open_, limits.shape[1])
            length = reached[rows].gather(1, which)
            if len(rows) < len(programs.kept):
                programs = SharedPrograms(kept[rows], self.space.blocks)
            weights = inside[rows, None].expand(-1, which.shape[1], -1)
            asked = costs[rows].take_along_dim(which[..., None], 1)
            bounds, multipliers = programs.bounds(
                asked, weights, length[..., None] / scales[rows], _RADIUS
            )
            slope = torch.linalg.vector_norm(multipliers / scales[rows], dim=2)
            step = (bounds - limits[rows].gather(1, which)) / slope
            step = step.nan_to_num(0.0).clamp_min(0.0)
            reached[rows] = reached[rows].scatter(1, which, length + step)
            more = step > _SETTLED * (length + step)
            open_ = torch.zeros_like(open_)
            open_[rows] = open_[rows].scatter(1, which, more)
        return reached

    def units(self, keys: Int[Tensor, "part program"]) -> Float[Tensor, "part program seen"]:
        """Return costs that are the weight of one key each."""
        return one_hot(keys, len(self.keys)).to(self.inside)


def some_of(
    asked: Bool[Tensor, "row place"], most: int
) -> tuple[Int[Tensor, " part"], Int[Tensor, "part chosen"]]:
    """Return the rows in which something is asked, and the first places there: a row with fewer repeats its first."""
    part = asked.any(1).nonzero()[:, 0]
    places = asked[part].byte().argsort(dim=1, descending=True, stable=True)
    places = places[:, : min(most, int(asked.sum(1).max()))]
    return part, places.where(asked[part].gather(1, places), places[:, :1])


def solver_of(
    weights_row: Float[Tensor, " key"],
    projected_values: HeadValues,
    visible: Bool[Tensor, " key"] | None,
    tolerance: float,
) -> tuple[Float[Tensor, " key"], SimplexSpace, RowPrograms]:
    """Return a checked row, its space and the programs over the alternatives with nearly its output.

    Raises:
        InputError: Weights that are no distribution over T's rows, and as `allowed_change`.
    """
    check_precision(weights_row)
    if weights_row.ndim != 1:
        raise InputError(
            f"expected the weights of one row, shape (key,); got {tuple(weights_row.shape)}; pass A[i]."
        )
    T = head_values(projected_values)
    row = checked_weights(weights_row[None], T, None if visible is None else visible[None])
    space = T.simplex_space(visible)
    allowed = allowed_change(row, T, tolerance)
    return row[0], space, RowPrograms.of(row, stacked([space]), allowed)


def stacked(spaces: Sequence[SimplexSpace]) -> SimplexSpace:
    """Return the spaces of rows of as many keys in one, with an axis of rows: see `SimplexSpace`."""
    most = max(space.rank for space in spaces)
    kept = torch.stack([pad(space.kept, (0, most - space.rank)) for space in spaces])
    scales = [pad(space.scales, (0, most - space.rank), value=torch.inf) for space in spaces]
    visible = torch.stack([space.visible for space in spaces])
    return replace(spaces[0], kept=kept, scales=torch.stack(scales), visible=visible)
