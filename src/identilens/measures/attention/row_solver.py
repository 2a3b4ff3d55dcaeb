"""The programs of one row: ends of its weights and of functionals, the order of keys, and radii."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import HeadValues, ProjectedValues, SimplexSpace, head_values
from identilens.linalg.certificate import Certificate
from identilens.linalg.interior import Optima, SharedPrograms
from identilens.measures.attention.checks import check_precision, checked_weights

Seen = Float[Tensor, " seen"]
"""A number of each key that the row sees."""

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


@dataclass(frozen=True)
class Ends:
    """The interval of each weight over all alternatives.

    Attributes:
        lo: Proven least values.
        hi: Proven greatest values.
        gap: Largest distance between an end and an alternative that was found for it.
        met: Alternatives that were found, the row itself first; of a long row only some: they have as many numbers as
            pairs of keys.
    """

    lo: Seen
    hi: Seen
    gap: float
    met: Float[Tensor, "alternative seen"]


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


def movable_keys(space: SimplexSpace, allowed: float) -> Bool[Tensor, "*row key"]:
    """Return which keys take part in some alternative; the others keep their weight."""
    alone = space.visible.sum(-1, keepdim=True) == 1
    return space.visible & ~alone if allowed else space.movable


class RowSolver:
    """Programs over the alternatives of one checked row, on its visible keys only.

    Attributes:
        space: What may change.
        inside: The weights.
        keys: Positions of the visible keys.
        blocks: Number of the row that each visible key belongs to, where several rows change together; else 0.
    """

    def __init__(
        self,
        row: Float[Tensor, " key"],
        space: SimplexSpace,
        allowed: float = 0.0,
        among: Bool[Tensor, " key"] | None = None,
    ):
        """Take a row and its space; changes of its output up to the length ``allowed`` count as none.

        Only keys ``among`` these are asked about, all by default.
        """
        self.space = space
        self.keys = torch.nonzero(space.visible).flatten()
        self.inside = row[space.visible]
        self._kept, self._scales = space.seen, space.scales
        self._asked = torch.ones_like(self.inside, dtype=torch.bool)
        if among is not None:
            self._asked = among[space.visible]
        self._movable = movable_keys(space, allowed)[space.visible] & self._asked
        self._allowed = allowed
        self.blocks = torch.zeros_like(self.keys)
        if space.blocks is not None:
            self.blocks = space.blocks[space.visible]
        self._programs = SharedPrograms(self._kept, self.blocks)

    def optima(self, costs: Float[Tensor, "program seen"]) -> Optima:
        """Return the least values of linear costs over all alternatives, with the multipliers that prove them."""
        if not self._movable.any():
            # Each weight is then a mixture of the outputs and of the sum: its row of B proves that.
            own = costs @ self.inside
            return Optima(own, own, self.inside.expand_as(costs), costs @ self._kept)
        reach = self._allowed / self._scales
        return self._programs.minimise(
            costs, self.inside.expand_as(costs), reach.expand(len(costs), -1)
        )

    def ends(self) -> Ends:
        """Return the least and the greatest value of each weight.

        A weight that some alternative has at zero needs no program for the least.
        """
        movable, least = torch.nonzero(self._movable).flatten(), self.inside
        lo, hi, met, gap = self.inside.clone(), self.inside.clone(), [self.inside[None]], 0.0
        lo[movable] = 0.0
        size = max(1, NUMBERS // len(self.inside))
        for sign, end in ((-1.0, hi), (1.0, lo)):
            for keys in movable.split(size):
                open_ = keys[(sign < 0) | (least[keys] > ALMOST_ZERO)]
                optima = self.optima(sign * self.units(open_))
                end[open_] = sign * optima.bounds
                gap = max(gap, optima.gap)
                least = torch.cat([least[None], optima.points]).amin(0)
                if sum(map(len, met)) < 4 * size:
                    met.append(optima.points)
        return Ends(
            torch.minimum(lo, self.inside),
            torch.maximum(hi, self.inside).clamp_max(1.0),
            gap,
            torch.cat(met),
        )

    def certificate(self, functional: Seen) -> Certificate:
        """Return both ends of a linear functional of the row over all alternatives, with what proves them."""
        optima = self.optima(torch.stack([functional, -functional]))
        free = self._scales.isfinite()
        # The columns of constants are left out of F: the sum of a row never changes, so they prove nothing more.
        parts = (
            self.inside,
            self._kept[:, free] * self._scales[free],
            self.blocks,
            functional,
            torch.tensor(self._allowed, dtype=torch.float64),
            optima.multipliers[:, free] / self._scales[free],
            torch.stack([optima.bounds[0], -optima.bounds[1]]),
            optima.points,
        )
        return Certificate(*(part.cpu() for part in parts))

    def order(self, ends: Ends) -> Bool[Tensor, "seen seen"]:
        """Return which key stands above which in every alternative."""
        asked = self._asked[:, None] & self._asked
        above = asked & (ends.lo[:, None] > ends.hi + ORDER_MARGIN)
        open_ = asked & ~above
        for key in range(len(self.inside)):
            open_[key] &= (ends.met[:, key, None] > ends.met + ORDER_MARGIN).all(0)
        while len(pairs := torch.nonzero(open_)[:_PAIRS]):
            j, k = pairs.T
            optima = self.optima(self.units(j) - self.units(k))
            above[j, k] = optima.bounds > ORDER_MARGIN
            open_[j, k] = False
            for point in optima.points:
                open_ &= point[:, None] > point + ORDER_MARGIN
        return above

    def top(self, ends: Ends) -> int | None:
        """Return the position of the key that no alternative puts second; the ends spare programs."""
        first = int(self.inside.where(self._asked, -1.0).argmax())
        rivals = self._asked & (ends.hi >= ends.lo[first] - ORDER_MARGIN)
        rivals[first] = False
        if not (ends.met[:, first, None] > ends.met[:, rivals] + ORDER_MARGIN).all():
            return None
        best = self.units([first])
        apart = all(
            (self.optima(best - self.units(part)).bounds > ORDER_MARGIN).all()
            for part in torch.nonzero(rivals).flatten().split(_PAIRS)
        )
        return int(self.keys[first]) if apart else None

    def proposal(self, cost: Seen, slope: Seen, already: float) -> Seen:
        """Return weights of nearly least cost, not certified, where the output has changed ``already``.

        The square of its change's length, to be at most that of the allowed one, rises by twice the ``slope`` with the
        weights.
        """
        offset = slope @ self._kept / self._scales
        square = self._allowed**2 - already**2 + float(offset.square().sum())
        right = self.inside @ self._kept - offset / self._scales
        return self._programs.proposal(cost, right, max(square, 0.0) ** 0.5 / self._scales)

    def farthest(self, ends: Ends) -> Seen:
        """Return the alternative that was met and puts most of the asked attention elsewhere."""
        moved = (self.inside - ends.met).clamp_min(0.0)[:, self._asked].sum(1)
        return ends.met[int(moved.argmax())]

    def length(self, point: Seen) -> Float[Tensor, ""]:
        """Return the length by which an alternative changes the output, without directions that count as none."""
        fixed = self._scales.isinf()
        along = ((point - self.inside) @ self._kept) * self._scales.masked_fill(fixed, 0.0)
        return torch.linalg.vector_norm(along)

    def radius(
        self, costs: Float[Tensor, "program seen"], limits: Float[Tensor, " program"]
    ) -> Float[Tensor, " program"]:
        """Return up to which length of a change of the output each least cost is proven to reach its limit.

        It must do so at the allowed length. The least cost is convex in that length, and the multipliers of a program
        bound it by a line: Newton's method stays on the proven side. Signs and sums alone may prove it for any length.
        """
        # Programs are solved to an absolute accuracy.
        size = costs.abs().amax(1).clamp_min(torch.finfo(costs.dtype).tiny)
        costs, limits = costs / size[:, None], limits / size
        alone = costs.amin(1) * self.inside.sum() >= limits
        reached = limits.new_full((len(costs),), self._allowed).masked_fill(alone, torch.inf)
        open_ = torch.nonzero(~alone).flatten()
        for _ in range(_NEWTON):
            if not len(open_):
                break
            reach = reached[open_, None] / self._scales
            programs = costs[open_], self.inside.expand(len(open_), -1)
            bounds, multipliers = self._programs.bounds(*programs, reach, _RADIUS)
            slope = torch.linalg.vector_norm(multipliers / self._scales, dim=1)
            step = ((bounds - limits[open_]) / slope).nan_to_num(0.0).clamp_min(0.0)
            reached[open_] += step
            open_ = open_[step > _SETTLED * reached[open_]]
        return reached

    def units(self, keys: Sequence[int] | Tensor) -> Float[Tensor, "program seen"]:
        """Return costs that are the weight of one key each."""
        places = torch.as_tensor(keys, device=self.keys.device)
        return self.inside.new_zeros(len(places), len(self.inside)).scatter_(
            1, places[:, None], 1.0
        )


def solver_of(
    weights_row: Float[Tensor, " key"],
    projected_values: HeadValues,
    visible: Bool[Tensor, " key"] | None,
    tolerance: float,
) -> tuple[Float[Tensor, " key"], RowSolver]:
    """Return a checked row and the programs over the alternatives with nearly its output.

    Raises:
        InputError: As `row_and_space` and `allowed_change`.
    """
    row, space = row_and_space(weights_row, projected_values, visible)
    allowed = allowed_change(row[None], head_values(projected_values), tolerance)
    return row, RowSolver(row, space, float(allowed))
