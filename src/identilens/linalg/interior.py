"""Linear and cone programs over rows' alternatives, many at once, by an interior-point method that shares work."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.errors import NumericalError
from identilens.linalg.columns import Columns
from identilens.linalg.cone import Scaling, product, quotient, room
from identilens.linalg.memory import blocks
from identilens.linalg.programs import (
    ACCEPTED_ERROR,
    SOLVER_TOLERANCE,
    by_simplex,
)
from identilens.linalg.threads import one_thread

_STEPS = 40
_CLOSE = 1e-9
"""Complementarity at which programs count as solved."""
_SHORT_OF_BOUNDARY = 0.99
_CORRECTIONS, _RIDGE = 3, 1e-13
"""Steps that bring a point into P, and what is added to their equations, as a share of the largest on the diagonal."""
_LEFT = 0.8
"""Share of the programs up to which those that are left go on by themselves."""
_EPS = torch.finfo(torch.float64).eps

Points = Float[Tensor, "*program key"]
"""A number of each key in each program."""

Multipliers = Float[Tensor, "*program rho"]
"""A number of each column of B in each program."""


@dataclass(frozen=True)
class Optima:
    """The least values of linear costs, each between two proven bounds: `Optimum` for many programs.

    Attributes:
        values: Costs of ``points``: the minima are at most these.
        bounds: Dual bounds: the minima are at least these.
        points: Distributions that reach ``values``.
        multipliers: y of each program: costs − B y, its least entry times the row's sum added, prove the bound.
    """

    values: Float[Tensor, "*program"]
    bounds: Float[Tensor, "*program"]
    points: Points
    multipliers: Multipliers


class SharedPrograms:
    """Programs over P = {x >= 0 : xᵀ B = aᵀ B} for many costs and rows a that share B, or over a larger P.

    Larger, if outputs that are near each other count as the same: xᵀ B may then be anywhere in an ellipsoid around
    aᵀ B, whose half axes along B's columns are the ``reach``, 0 for the sum of the row. So P is the intersection of a
    simplex with a cylinder, and its programs are second-order cone programs.

    Mehrotra's predictor-corrector method on all programs at once (Nocedal and Wright, Numerical Optimization, ch. 14;
    for the cone, Vandenberghe, The CVXOPT linear and quadratic cone program solvers, 2010). In a step each program
    needs Bᵀ D B with a diagonal D of its own: the products of B's columns are formed once, so that all of them are one
    matrix product. The method is not trusted: bounds are proven from its multipliers, and its points are brought into
    P. All on the device of B; on a processor parts of the programs run beside each other.

    Args:
        kept: B, orthonormal columns that span [T, 1]; of several rows beside each other, the ones of each by itself.
            The B of several heads go together, columns of zeros added to those of least rank: costs and rows then
            have an axis of heads, too, before that of programs.
            Keys with zeros in all columns are none of a row: they stay at 0.
        blocks: Number of the row, for keys of several rows beside each other; each has a sum of its own.
    """

    def __init__(
        self, kept: Float[Tensor, "*head key rho"], blocks: Int[Tensor, " key"] | None = None
    ):
        self.kept = kept.detach().double()
        none = kept.new_zeros(kept.shape[-2], dtype=torch.int64)
        self._blocks = none if blocks is None else blocks
        self._count = int(self._blocks.max()) + 1
        self._columns = Columns(self.kept, self._count)
        self._hidden = (self.kept == 0).all(-1)[..., None, :]

    def bounds(
        self, costs: Points, rows: Points, reach: Multipliers, complementarity: float
    ) -> tuple[Tensor, ...]:
        """Return lower bounds near the optima, and the multipliers that prove them: see `proven`.

        So near that x·s per key is below the ``complementarity``.
        """

        def solve(costs: Tensor, rows: Tensor, reach: Tensor) -> tuple[Tensor, ...]:
            _, multipliers = self._interior(complementarity, costs, rows @ self.kept, reach)
            return self.proven(costs, rows, multipliers, reach), multipliers

        return self._in_parts(solve, costs, rows, reach)

    @one_thread()
    def proposal(
        self,
        cost: Float[Tensor, " key"],
        right: Float[Tensor, " rho"],
        reach: Float[Tensor, " rho"],
    ) -> Float[Tensor, " key"]:
        """Return x near the least cost·x, x >= 0, with xᵀB in the ellipsoid around ``right``; nothing is certified."""
        return self._interior(_CLOSE, cost[None], right[None], reach[None])[0][0].clamp_min(0.0)

    def minimise(
        self,
        costs: Points,
        rows: Points,
        reach: Multipliers | None = None,
    ) -> Optima:
        """Return the least costs·x over the alternatives of each program's row, with certificates.

        The bound is proven and the point is an alternative; they are as near as `Optima.values` say. Linear
        programs whose point is further than ``ACCEPTED_ERROR``, times the largest cost, from the bound, or from the
        alternatives, go to `by_simplex`.

        Raises:
            NumericalError: A linear program whose answer cannot be certified, by `by_simplex` neither.
        """

        def solve(costs: Tensor, rows: Tensor, reach: Tensor) -> tuple[Tensor, ...]:
            points, multipliers = self._interior(_CLOSE, costs, rows @ self.kept, reach)
            points = self._corrected(points.masked_fill(self._hidden, 0.0), rows, reach)
            points = self.within(points, rows, reach)
            optima, solved = self._bounded(costs, rows, reach, points, multipliers)
            loose = ~solved & (reach == 0).all(-1)
            for program in map(tuple, loose.nonzero().tolist()):
                point = by_simplex(costs[program], rows[program], self.kept[program[:-1]])
                points[program], multipliers[program] = point
            if loose.any():
                optima, solved = self._bounded(costs, rows, reach, points, multipliers)
            if not solved[loose].all():
                raise NumericalError(
                    f"expected optima proven to {ACCEPTED_ERROR:g} for programs of {self.kept.shape[-2]} weights; the "
                    "values may be too badly scaled: try a larger tolerance."
                )
            return optima

        # Programs are solved to an absolute accuracy.
        size = costs.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(costs.dtype).tiny)
        values, bounds, points, multipliers = self._in_parts(solve, costs / size, rows, reach)
        return Optima(size[..., 0] * values, size[..., 0] * bounds, points, size * multipliers)

    def proven(
        self,
        costs: Points,
        rows: Points,
        multipliers: Multipliers,
        reach: Multipliers,
    ) -> Float[Tensor, "*program"]:
        """Return y·Bᵀa − ‖reach ∘ y‖ + Σ (sum of a row) · min (c − B y): a lower bound whatever the multipliers y are.

        For every x in P, c·x = y·Bᵀa + y·Bᵀ(x − a) + (c − B y)·x, and none of the last two can be less. What these sums
        are rounded by at most is taken off.
        """
        reduced, sums = costs - multipliers @ self.kept.mT, self._by_row(rows, 0.0, "sum")
        least = (self._by_row(reduced, torch.inf, "amin") * sums).sum(-1)
        rounding = self.kept.shape[-2] * _EPS * multipliers.abs().sum(-1) * sums.sum(-1)
        bounds = (multipliers * (rows @ self.kept)).sum(-1) + least - rounding
        return bounds - torch.linalg.vector_norm(reach * multipliers, dim=-1)

    def within(
        self,
        points: Points,
        rows: Points,
        reach: Multipliers,
    ) -> Points:
        """Return points near these with the rows' sums, drawn towards the rows as far as the ellipsoid needs.

        They are in P if xᵀ B is that of the rows where the ``reach`` is 0.
        """
        wanted = self._by_row(rows, 0.0, "sum")
        sums = self._by_row(points, 0.0, "sum").clamp_min(SOLVER_TOLERANCE)
        moves = points * (wanted / sums)[..., self._blocks] - rows
        along = torch.where(reach > 0, (moves @ self.kept) / reach, 0.0)
        length = torch.linalg.vector_norm(along, dim=-1, keepdim=True).clamp_min(1.0)
        return (rows + moves / length).clamp_min(0.0)

    def _corrected(self, points: Tensor, rows: Tensor, reach: Tensor) -> Tensor:
        """Return points with xᵀ B where it may be, by changes of each entry in proportion to itself."""
        for _ in range(_CORRECTIONS):
            outside = (points - rows) @ self.kept
            along = torch.where(reach > 0, outside / reach, 0.0)
            length = torch.linalg.vector_norm(along, dim=-1, keepdim=True).clamp_min(1.0)
            missing = along / length * reach - outside
            equations = self._columns.gram(points)
            diagonal = equations.diagonal(dim1=-2, dim2=-1)
            diagonal.add_(_RIDGE * diagonal.amax(-1, keepdim=True))
            factor = torch.linalg.cholesky_ex(equations)[0]
            change = self._columns.solve(factor, missing) @ self.kept.mT
            points = (points + points * change.nan_to_num(0.0, 0.0, 0.0)).clamp_min(0.0)
        return points

    def _by_row(self, numbers: Tensor, empty: float, how: str) -> Float[Tensor, "*program block"]:
        places = self._blocks.expand_as(numbers)
        sums = numbers.new_full((*numbers.shape[:-1], self._count), empty)
        return sums.scatter_reduce(-1, places, numbers, how)

    def _in_parts(
        self,
        solve: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]],
        costs: Tensor,
        rows: Tensor,
        reach: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """Return what ``solve`` returns for all programs, so many at a time that they and their equations fit.

        Each of these parts has a thread to itself, so that digits are the same on any number of threads.
        """
        *heads, keys, rho = self.kept.shape
        if reach is None:
            reach = self.kept.new_zeros(*costs.shape[:-1], rho)
        # Hidden keys have a cost and no part in anything else.
        costs = costs.masked_fill(self._hidden, 1.0)
        each = 8 * prod(heads) * rho * (keys + 2 * rho)
        programs = blocks(max(costs.shape[-2], 1), each, costs.device)
        split = ([x[..., part, :] for part in programs] for x in (costs, rows, reach))
        pool = ThreadPoolExecutor(torch.get_num_threads(), "", torch.set_num_threads, (1,))
        with one_thread(), pool:
            run = pool.map if costs.is_cpu and len(programs) > 1 else map
            parts = [*run(solve, *split)]
        return tuple(torch.cat(part, len(heads)) for part in zip(*parts, strict=True))

    def _bounded(
        self,
        costs: Tensor,
        rows: Tensor,
        reach: Tensor,
        points: Tensor,
        multipliers: Tensor,
    ) -> tuple[tuple[Tensor, ...], Bool[Tensor, "*program"]]:
        """Return the fields of `Optima`, and whether each point solves its linear program; NaN does not.

        Multipliers of 0 prove what signs and sums alone do: a weight is at least 0, and at most its row's sum.
        """
        values, bounds = (costs * points).sum(-1), self.proven(costs, rows, multipliers, reach)
        alone = self.proven(costs, rows, torch.zeros_like(multipliers), reach)
        less = ~(bounds >= alone)
        bounds = torch.where(less, alone, bounds)
        multipliers = multipliers.masked_fill(less[..., None], 0.0)
        error = ((points - rows) @ self.kept).abs().amax(-1)
        solved = torch.maximum(error, (values - bounds).abs()) <= ACCEPTED_ERROR
        return (values, torch.minimum(bounds, values), points, multipliers), solved

    def _interior(
        self,
        close: float,
        costs: Points,
        right: Multipliers,
        reach: Multipliers,
    ) -> tuple[Points, Multipliers]:
        """Return points and multipliers that are as nearly optimal as asked, or as the method comes.

        (1, u) with xᵀB = right + reach ∘ u is in a second-order cone, and so is its multiplier z = (z_0, reach ∘ y).
        """
        x, y, s = _start(costs, right, self.kept)
        axes = self._columns.frame[..., None, :, :] * reach[..., None, :]
        ellipsoid = axes @ axes.mT
        u, z = (
            torch.zeros_like(y),
            1e-3 + 1.5 * torch.linalg.vector_norm(reach * y, dim=-1, keepdim=True),
        )
        points, multipliers = x.clone(), y.clone()
        program = torch.arange(costs.shape[-2], device=x.device).expand(x.shape[:-1])
        running = program >= 0
        for _ in range(_STEPS):
            primal = right + reach * u - x @ self.kept
            dual = costs - y @ self.kept.mT - s
            mean = (x * s).sum(-1, keepdim=True) + z + (u * reach * y).sum(-1, keepdim=True)
            mean = mean / (x.shape[-1] + 1)
            worst = [mean[..., 0] * x.shape[-1], *(part.abs().amax(-1) for part in (primal, dual))]
            sound = running & mean[..., 0].isfinite()
            for held, numbers in ((points, x), (multipliers, y)):
                index = program[..., None].expand_as(numbers)
                kept = numbers.where(sound[..., None], held.gather(-2, index))
                held.scatter_(-2, index, kept)
            running &= (torch.stack(worst).amax(0) > close) & (worst[0] > 1e-4 * close)
            going = int(running.sum(-1).max())
            if not going:
                break
            moves = self._moves(
                x,
                s,
                torch.cat([torch.ones_like(z), u], -1),
                torch.cat([z, reach * y], -1),
                reach,
                ellipsoid,
                (primal, dual),
                mean,
            )
            x, y, s, u, z = map(torch.add, (x, y, s, u, z), moves)
            shape = running.shape
            if going < _LEFT * shape[-1]:
                # As many programs of every head go on as one of them has left.
                first = running.byte().topk(going).indices
                places = torch.arange(running.numel()).to(first).view(shape).gather(-1, first)
                state = program, running, x, y, s, u, z, costs, right, reach, ellipsoid
                program, running, x, y, s, u, z, costs, right, reach, ellipsoid = (
                    part.expand(*shape, *part.shape[len(shape) :]).flatten(0, len(shape) - 1)[
                        places
                    ]
                    for part in state
                )
        return points, multipliers

    def _moves(
        self,
        x: Tensor,
        s: Tensor,
        v: Tensor,
        z: Tensor,
        reach: Tensor,
        ellipsoid: Tensor,
        residuals: tuple[Tensor, Tensor],
        mean: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return by how much x, y, s, and of the cone's vectors u and z_0, change in a step."""
        primal, dual = residuals
        scaling, ratio = Scaling.between(v, z), x / s
        across = scaling.point[..., 1:]
        flat = 2 * scaling.point[..., :1].square() - 1
        leaning = 2 * scaling.point[..., :1] * across / flat
        equations = self._columns.gram(ratio)
        if reach.any():
            # W² with its first row and column eliminated, since v_0 = 1, is η² (1 − 2 w wᵀ / flat).
            equations.addcmul_(scaling.size.square()[..., None], ellipsoid)
            bent = reach * across * (2 / flat).sqrt() * scaling.size @ self._columns.frame.mT
            equations.addcmul_(bent[..., None], bent[..., None, :], value=-1)
        equations.diagonal(dim1=-2, dim2=-1).mul_(1 + 1e-15)
        factor = torch.linalg.cholesky_ex(equations)[0]

        products, turn = -x * s, -v
        moves: tuple[Tensor, ...] = ()
        # The products x s are to change by this and v + W² z by the turn, at first all the way to zero.
        for corrected in (False, True):
            level = turn[..., 1:] - leaning * turn[..., :1]
            right = primal + (ratio * (dual - products / x)) @ self.kept + reach * level
            dy = self._columns.solve(factor, right)
            ds, dz = dual - dy @ self.kept.mT, reach * dy
            dx = (products - x * ds) / s
            inner = (across * dz).sum(-1, keepdim=True)
            du = level - scaling.size.square() * (dz - 2 * across * inner / flat)
            first = turn[..., :1] / (scaling.size.square() * flat)
            first -= (leaning * dz).sum(-1, keepdim=True)
            dv, dz = torch.cat([torch.zeros_like(first), du], -1), torch.cat([first, dz], -1)
            lengths = [_length(x, dx), room(v, dv), _length(s, ds), room(z, dz)]
            length = torch.cat(lengths, -1).amin(-1, keepdim=True)
            step = (_SHORT_OF_BOUNDARY * length).clamp_max(1.0)
            moves = tuple(step * move for move in (dx, dy, ds, du, first))
            if corrected:
                break
            centred = (1 - length.clamp_max(1.0)) ** 3 * mean
            turned = -product(scaling.apply(dv, -1.0), scaling.apply(dz))
            turned[..., :1] += centred
            turn = scaling.apply(quotient(scaling.apply(z), turned)) - v
            products = centred - x * s - dx * ds
        return moves


def _start(costs: Tensor, right: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return where the method starts: Mehrotra's point, positive and balanced."""
    x, y = right @ kept.mT, costs @ kept
    s = costs - y @ kept.mT
    x, s = (p + (-1.5 * p.amin(-1, keepdim=True)).clamp_min(0.0) for p in (x, s))
    product = (x * s).sum(-1, keepdim=True)
    balance = [0.5 * product / p.sum(-1, keepdim=True).clamp_min(SOLVER_TOLERANCE) for p in (s, x)]
    return x + balance[0].clamp_min(1e-3 / x.shape[-1]), y, s + balance[1].clamp_min(1e-3)


def _length(positive: Tensor, move: Tensor) -> Float[Tensor, "*program 1"]:
    """Return how far each can move before an entry is zero."""
    return torch.where(move < 0, -positive / move, torch.inf).amin(-1, keepdim=True)
