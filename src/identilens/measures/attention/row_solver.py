"""The linear programs of one row, sharing the alternatives that they come by."""

from collections.abc import Sequence
from dataclasses import replace
from numbers import Real

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import HeadValues, ProjectedValues, SimplexSpace, head_values
from identilens.linalg.certificate import Certificate
from identilens.linalg.interior import Optima, SharedPrograms
from identilens.linalg.programs import RowPrograms
from identilens.measures.attention.checks import check_precision, checked_weights

ORDER_MARGIN = 1e-9
"""A key is certified above another only when every alternative keeps them this far apart."""

ALMOST_ZERO = 1e-9
"""A weight that some alternative has below this counts as one that may be zero."""

_PAIRS = 64
"""Programs of pairs of keys that run together."""

NUMBERS = 2**20
"""Numbers in the costs of programs that run together, and four times in the alternatives that are kept."""

_NEWTON, _SETTLED, _RADIUS = 20, 0.01, 1e-8
"""Steps in the search of a radius at most, the relative step after which it ends, and the accuracy of its programs."""

Ends = tuple[Float[Tensor, " seen"], Float[Tensor, " seen"]]


def row_and_space(
    weights_row: Float[Tensor, " key"],
    projected_values: HeadValues,
    visible: Bool[Tensor, " key"] | None,
) -> tuple[Float[Tensor, " key"], SimplexSpace]:
    """Return a row in float64, checked, and what it may change.

    Raises:
        InputError: Weights that are no distribution over T's rows.
    """
    check_precision(weights_row)
    if weights_row.ndim != 1:
        raise InputError(
            f"expected the weights of one row, shape (key,); got {tuple(weights_row.shape)}; pass A[i]."
        )
    T = head_values(projected_values)
    row = checked_weights(weights_row[None], T, None if visible is None else visible[None])
    return row[0], T.simplex_space(visible)


def filled(
    rows: Float[Tensor, "*row key"], space: SimplexSpace, seen: Float[Tensor, "*row seen"]
) -> Float[Tensor, "*row key"]:
    """Return rows with other numbers on their visible keys."""
    return rows.masked_scatter(space.visible, seen.to(rows.device))


def allowed_change(
    rows: Float[Tensor, "row key"], T: ProjectedValues, tolerance: float
) -> Float[Tensor, " row"]:
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


def movable_keys(space: SimplexSpace, allowed: float) -> Bool[Tensor, " seen"]:
    """Return which visible keys take part in some alternative; the others keep their weight."""
    movable = space.movable[space.visible].cpu()
    return torch.full_like(movable, len(movable) > 1) if allowed else movable


class RowSolver:
    """Programs over the alternatives of one checked row, on its visible keys only.

    Attributes:
        inside: The weights.
        keys: Positions of the visible keys.
        blocks: Number of the row that each visible key belongs to, where several rows change together; else 0.
        gap: Largest distance so far between a proven bound and an alternative that was found.
        slopes: After `lower`: each end falls at most so fast with the length of a change of the output that is allowed.
    """

    def __init__(
        self,
        row: Float[Tensor, " key"],
        space: SimplexSpace,
        allowed: float = 0.0,
        among: Bool[Tensor, " key"] | None = None,
    ):
        """Take a row and its space; changes of its output up to the length ``allowed`` count as none.

        Only keys ``among`` these are asked about, all by default. Of a long row not every alternative that was met is
        kept: they have as many numbers as pairs of keys.
        """
        self.keys = torch.nonzero(space.visible).flatten().cpu()
        self.inside = row[space.visible].cpu()
        self.gap, self.slopes = 0.0, torch.zeros_like(self.inside)
        self._kept, self._scales = space.kept[space.visible].cpu(), space.scales.cpu()
        self._asked = torch.ones_like(self.inside, dtype=torch.bool)
        if among is not None:
            self._asked = among[space.visible].cpu()
        self._movable = movable_keys(space, allowed) & self._asked
        self._allowed = allowed
        self._reach = allowed / self._scales if allowed else None
        # Alternatives met so far: they settle programs before these are run.
        self._seen = [self.inside]
        self._most = 4 * NUMBERS // len(self.keys)
        self._least = self._far = self.inside
        self.blocks = torch.zeros_like(self.keys)
        if space.blocks is not None:
            self.blocks = space.blocks[space.visible.cpu()]
        self._shared = SharedPrograms(self._kept, self.blocks)
        self._programs: RowPrograms | None = None

    def least(self, costs: Float[Tensor, "program seen"]) -> Float[Tensor, " program"]:
        """Return proven lower bounds of linear costs over all alternatives, within ``gap`` of the minima."""
        return self.optima(costs).bounds

    def optima(self, costs: Float[Tensor, "program seen"]) -> Optima:
        """Return the least values of linear costs over all alternatives, with the multipliers that prove them."""
        if not (len(costs) and self._movable.any()):
            # Each weight is then a mixture of the outputs and of the sum: its row of B proves that.
            own = costs @ self.inside
            return Optima(own, own, self.inside.expand_as(costs), costs @ self._kept)
        if self._reach is not None:
            return self._together(costs)
        self._programs = self._programs or RowPrograms(self.inside, self._kept)
        optima = [self._programs.minimise(cost) for cost in costs]
        return self._met(
            costs,
            Optima(
                costs.new_tensor([optimum.value for optimum in optima]),
                costs.new_tensor([optimum.bound for optimum in optima]),
                torch.stack([optimum.point for optimum in optima]),
                torch.stack([optimum.multipliers for optimum in optima]),
            ),
        )

    def certificate(self, functional: Float[Tensor, " seen"]) -> Certificate:
        """Return both ends of a linear functional of the row over all alternatives, with what proves them."""
        # Programs are solved to an absolute accuracy.
        size = functional.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
        optima = self.optima(torch.stack([functional, -functional]) / size)
        free = self._scales.isfinite()
        # The columns of constants are left out of F: the sum of a row never changes, so they prove nothing more.
        certificate = Certificate(
            self.inside,
            self._kept[:, free] * self._scales[free],
            self.blocks,
            functional,
            torch.tensor(self._allowed, dtype=torch.float64),
            size * optima.multipliers[:, free] / self._scales[free],
            size * torch.stack([optima.bounds[0], -optima.bounds[1]]),
            optima.points,
        )
        return certificate.without_output()

    def lower(self) -> Float[Tensor, " seen"]:
        """Return the least value of each weight where the output stays the same exactly.

        One that some alternative has at zero needs no program of its own.
        """
        lo, zero = torch.where(self._movable, 0.0, self.inside), self._zero
        # A weight that never moves is a mixture of the outputs and of the sum: its row of B proves that.
        multipliers = self._kept * ~self._movable[:, None]
        for key in torch.nonzero(self._movable & ~zero).flatten().tolist():
            if not zero[key]:
                optima = self.optima(self.units([key]))
                lo[key], multipliers[key] = optima.bounds[0], optima.multipliers[0]
                zero = self._zero
        self.slopes = torch.linalg.vector_norm(multipliers / self._scales, dim=1)
        return torch.minimum(lo, self.inside)

    def ends(self) -> Ends:
        """Return the least and the greatest value of each weight, by programs that run together."""
        if not self._movable.any():
            return self.inside.clone(), self.inside.clone()
        hi = self.inside.masked_scatter(self._movable, -self._bounds(-1.0, self._movable))
        return self._lower(), torch.maximum(hi, self.inside)

    def _lower(self) -> Float[Tensor, " seen"]:
        """Return the least value of each weight, by programs that run together."""
        open_ = self._movable & ~self._zero
        lo = torch.where(self._movable, 0.0, self.inside)
        found = self._bounds(1.0, open_)
        return torch.minimum(lo.masked_scatter(open_, found), self.inside)

    def _bounds(self, sign: float, keys: Bool[Tensor, " seen"]) -> Float[Tensor, " program"]:
        """Return the least values of some weights, or of their opposites, a part of them at a time."""
        parts = self.parts(torch.nonzero(keys).flatten())
        bounds = [self._together(sign * self.units(part)).bounds for part in parts]
        return torch.cat([self.inside[:0], *bounds])

    def parts(self, programs: Int[Tensor, " program"]) -> Sequence[Int[Tensor, " part"]]:
        """Return the numbers of programs, so many together that their costs fit."""
        return programs.split(max(1, NUMBERS // len(self.inside)))

    @property
    def _zero(self) -> Bool[Tensor, " seen"]:
        """Which weights some alternative met so far has at zero."""
        return self._least <= ALMOST_ZERO

    def _together(self, costs: Float[Tensor, "program seen"]) -> Optima:
        every = [
            one.expand(len(costs), -1) for one in (self.inside, self._reach) if one is not None
        ]
        return self._met(costs, self._shared.minimise(costs, *every))

    def _met(self, costs: Float[Tensor, "program seen"], optima: Optima) -> Optima:
        """Return optima with what signs and sums alone prove; their points are noted as alternatives."""
        # Multipliers of 0 prove what signs and sums alone do: a weight is at least 0, and at most its row's sum.
        alone = self._alone(costs)
        less = alone > optima.bounds
        optima = replace(
            optima,
            bounds=torch.where(less, alone, optima.bounds),
            multipliers=optima.multipliers.masked_fill(less[:, None], 0.0),
        )
        points = optima.points
        self.gap = max(self.gap, optima.gap)
        if len(points):
            self._least = torch.minimum(self._least, points.amin(0))
            far = torch.stack([self._far, *points.unbind()])
            moved = (self.inside - far).clamp_min(0.0)[:, self._asked].sum(1)
            self._far = far[int(moved.argmax())].clone()
            self._seen += points[: max(0, self._most - len(self._seen))].unbind()
        return optima

    def _alone(self, costs: Float[Tensor, "program seen"]) -> Float[Tensor, " program"]:
        """Return the least costs of all non-negative weights with the sums of the rows."""
        rows = int(self.blocks.max()) + 1
        sums = self.inside.new_zeros(rows).index_add(0, self.blocks, self.inside)
        least = costs.new_full((len(costs), rows), torch.inf)
        # Distributions, whose sums round.
        sums = sums.clamp_max(1.0)
        return least.scatter_reduce(1, self.blocks.expand_as(costs), costs, "amin") @ sums

    def greatest(self, key: int) -> float:
        """Return the greatest value of the weight of one visible key, given by its position."""
        place = int((self.keys == key).nonzero())
        return max(-float(self.least(-self.units([place]))), float(self.inside[place]))

    def order(self, ends: Ends) -> Bool[Tensor, "seen seen"]:
        """Return which key stands above which in every alternative, given the ends of the intervals."""
        lo, hi = ends
        above = lo[:, None] > hi[None, :] + ORDER_MARGIN
        seen = torch.stack(self._seen)
        above &= self._asked[:, None] & self._asked
        open_ = (self.inside[:, None] > self.inside[None, :] + ORDER_MARGIN) & ~above
        open_ &= self._asked[:, None] & self._asked
        for key in range(len(self.inside)):
            open_[key] &= (seen[:, key, None] > seen + ORDER_MARGIN).all(0)
        while len(pairs := torch.nonzero(open_)[: self._at_once]):
            j, k = pairs.T
            above[j, k] = self._apart(j, k)
            open_[j, k] = False
            for last in self._seen[-len(pairs) :]:
                open_ &= last[:, None] > last[None, :] + ORDER_MARGIN
        return above

    def top(self, ends: Ends | None, sizes: Float[Tensor, " seen"] | None = None) -> int | None:
        """Return the position of the key that no alternative puts second; the ends spare programs where given.

        Keys are compared by their weights times the ``sizes``, of at least 0 and at most 1.
        """
        sizes = torch.ones_like(self.inside) if sizes is None else sizes
        first = int((self.inside * sizes).where(self._asked, -1.0).argmax())
        rivals = self._asked.clone()
        rivals[first] = False
        if ends is not None:
            lo, hi = ends
            rivals &= hi * sizes >= lo[first] * sizes[first] - ORDER_MARGIN
        seen = torch.stack(self._seen) * sizes
        if not (seen[:, first, None] > seen[:, rivals] + ORDER_MARGIN).all():
            return None
        parts = torch.nonzero(rivals).flatten().split(self._at_once)
        best = self.units([first])
        apart = all(
            (self.least((best - self.units(part)) * sizes) > ORDER_MARGIN).all() for part in parts
        )
        return int(self.keys[first]) if apart else None

    def proposal(
        self, cost: Float[Tensor, " seen"], slope: Float[Tensor, " seen"], already: float
    ) -> Float[Tensor, " seen"]:
        """Return weights of nearly least cost, not certified, where the output has changed ``already``.

        The square of its change's length, to be at most that of the allowed one, rises by twice the ``slope`` with the
        weights.
        """
        offset = slope @ self._kept / self._scales
        square = self._allowed**2 - already**2 + float(offset.square().sum())
        right = self.inside @ self._kept - offset / self._scales
        return self._shared.proposal(cost, right, max(square, 0.0) ** 0.5 / self._scales)

    def farthest(self) -> Float[Tensor, " seen"]:
        """Return the alternative met so far that puts most of the asked attention elsewhere."""
        return self._far

    def length(self, point: Float[Tensor, " seen"]) -> Float[Tensor, ""]:
        """Return the length by which an alternative changes the output, without directions that count as none."""
        fixed = self._scales.isinf()
        along = ((point - self.inside) @ self._kept) * self._scales.masked_fill(fixed, 0.0)
        return torch.linalg.vector_norm(along)

    def radius(
        self,
        costs: Float[Tensor, "program seen"],
        limits: Float[Tensor, " program"],
        start: float,
    ) -> Float[Tensor, " program"]:
        """Return up to which length of a change of the output each least cost is proven to reach its limit.

        It must do so at the length ``start``. The least cost is convex in that length, and the multipliers of a program
        bound it by a line: Newton's method stays on the proven side.
        """
        reached = torch.full((len(costs),), start, dtype=torch.float64)
        open_ = torch.arange(len(costs))
        for _ in range(_NEWTON):
            if not len(open_):
                break
            reach = reached[open_, None] / self._scales
            programs = costs[open_], self.inside.expand(len(open_), -1)
            _, multipliers = self._shared.near(*programs, reach, _RADIUS)
            bounds = self._shared.proven(*programs, multipliers, reach)
            slope = torch.linalg.vector_norm(multipliers / self._scales, dim=1)
            step = ((bounds - limits[open_]) / slope).nan_to_num(0.0).clamp_min(0.0)
            reached[open_] += step
            open_ = open_[step > _SETTLED * reached[open_]]
        return reached

    @property
    def _at_once(self) -> int:
        """Pairs of keys whose programs run together; one by one, each starts from the vertex of the last."""
        return 1 if self._reach is None else _PAIRS

    def _apart(self, j: Int[Tensor, " pair"], k: Int[Tensor, " pair"]) -> Bool[Tensor, " pair"]:
        return self.least(self.units(j) - self.units(k)) > ORDER_MARGIN

    def units(self, keys: Sequence[int] | Tensor) -> Float[Tensor, "program seen"]:
        """Return costs that are the weight of one key each."""
        places = torch.as_tensor(keys)
        return torch.zeros(len(places), len(self.inside)).double().scatter_(1, places[:, None], 1.0)
