"""Many linear programs over rows' alternatives at once, by an interior-point method that shares what they share."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.linalg.programs import ACCEPTED_ERROR, SOLVER_TOLERANCE, RowPrograms
from identilens.linalg.threads import one_thread

_STEPS = 40
_CLOSE, _NEAR = 1e-9, 1e-4
"""Complementarity at which the vertex that the method runs to can be told, and at which multipliers prove enough."""
_SHORT_OF_BOUNDARY = 0.9995
_NUMBERS = 2**22
"""Numbers held at a time in the equations of a step."""


@dataclass(frozen=True)
class Optima:
    """The least values of linear costs, each between two proven bounds: `Optimum` for many programs.

    Attributes:
        values: Costs of ``points``: the minima are at most these.
        bounds: Dual bounds: the minima are at least these.
        points: Distributions that reach ``values``.
        multipliers: y of each program: costs − B y, its least entry times the row's sum added, prove the bound.
    """

    values: Float[Tensor, " program"]
    bounds: Float[Tensor, " program"]
    points: Float[Tensor, "program key"]
    multipliers: Float[Tensor, "program rho"]

    @property
    def gap(self) -> float:
        """Largest distance between a bound and a value."""
        return float((self.values - self.bounds).max()) if len(self.values) else 0.0


class SharedPrograms:
    """Linear programs over P = {x >= 0 : xᵀ B = aᵀ B} for many costs and rows a that share B.

    Mehrotra's predictor-corrector method on all programs at once (Nocedal and Wright, Numerical Optimization, ch. 14).
    In a step each program needs Bᵀ D B with a diagonal D of its own: the products of B's columns are formed once, so
    that all of them are one matrix product. When the method is close, the vertex that it runs to is solved for
    directly. What cannot be proven in this way goes to `RowPrograms`. All on one thread.

    Args:
        kept: B, orthonormal columns that span [T, 1].
    """

    def __init__(self, kept: Float[Tensor, "key rho"]):
        self.kept = kept.detach().double().cpu()

    @cached_property
    def _products(self) -> Float[Tensor, "key pair"]:
        first, second = self._pairs
        return self.kept[:, first] * self.kept[:, second]

    @cached_property
    def _pairs(self) -> Tensor:
        return torch.tril_indices(self.kept.shape[1], self.kept.shape[1])

    @one_thread()
    def near(
        self, costs: Float[Tensor, "program key"], rows: Float[Tensor, "program key"]
    ) -> tuple[Float[Tensor, "program key"], Float[Tensor, "program rho"]]:
        """Return moves from the rows to alternatives near the optima, and multipliers that prove bounds near them.

        Nothing is certified; whoever uses them sees how far a move can be made and what the multipliers prove.
        """
        points, multipliers = self._in_parts(
            lambda cost, part: self._interior(cost, part @ self.kept, _NEAR), costs, rows
        )
        moves = points - rows
        return moves - (moves @ self.kept) @ self.kept.mT, multipliers

    @one_thread()
    def minimise(
        self, costs: Float[Tensor, "program key"], rows: Float[Tensor, "program key"]
    ) -> Optima:
        """Return the least costs·x over the alternatives of each program's row, with certificates.

        Costs should be of size one: programs are solved to an absolute accuracy.

        Raises:
            NumericalError: A program whose answer cannot be certified, by `RowPrograms` neither.
        """
        return Optima(*self._in_parts(self._some, costs, rows))

    def _in_parts(
        self, solve: Callable[[Tensor, Tensor], tuple[Tensor, ...]], costs: Tensor, rows: Tensor
    ) -> tuple[Tensor, ...]:
        """Return what ``solve`` returns for all programs, so many at a time that their equations fit."""
        keys, rho = self.kept.shape
        size = max(1, _NUMBERS // (rho * rho + 8 * keys))
        parts = [solve(*part) for part in zip(costs.split(size), rows.split(size), strict=True)]
        return tuple(torch.cat(part) for part in zip(*parts, strict=True))

    def _some(
        self, costs: Float[Tensor, "program key"], rows: Float[Tensor, "program key"]
    ) -> tuple[Tensor, ...]:
        right = rows @ self.kept
        points, multipliers = self._interior(costs, right, _CLOSE)
        found = self._certified(costs, rows, points, multipliers)
        vertices = self._certified(costs, rows, *self._vertices(costs, right, points))
        better = vertices.proven & ~(found.proven & (found.gaps < vertices.gaps))
        parts = [
            torch.where(better if one.ndim == 1 else better[:, None], one, other)
            for one, other in zip(vertices.answer, found.answer, strict=True)
        ]
        for program in torch.nonzero(~(found.proven | vertices.proven)).flatten().tolist():
            optimum = RowPrograms(rows[program], self.kept).minimise(costs[program])
            for part, one in zip(
                parts,
                (optimum.value, optimum.bound, optimum.point, optimum.multipliers),
                strict=True,
            ):
                part[program] = one
        return tuple(parts)

    def _interior(
        self, costs: Float[Tensor, "program key"], right: Float[Tensor, "program rho"], close: float
    ) -> tuple[Float[Tensor, "program key"], Float[Tensor, "program rho"]]:
        """Return points and multipliers that are as nearly optimal as asked, or as the method comes."""
        x, y, s = _start(costs, right, self.kept)
        points, multipliers, open_ = x.clone(), y.clone(), torch.arange(len(costs))
        c, b = costs, right
        for _ in range(_STEPS):
            primal, dual, mean = b - x @ self.kept, c - y @ self.kept.mT - s, (x * s).mean(1)
            far = (
                torch.stack([mean * x.shape[1], primal.abs().amax(1), dual.abs().amax(1)]).amax(0)
                > close
            )
            points[open_], multipliers[open_] = x, y
            if not far.any():
                break
            open_, x, y, s, c, b, primal, dual, mean = (
                one[far] for one in (open_, x, y, s, c, b, primal, dual, mean)
            )
            x, y, s = self._step(x, y, s, (primal, dual), mean)
        return points, multipliers

    def _step(
        self, x: Tensor, y: Tensor, s: Tensor, residuals: tuple[Tensor, Tensor], mean: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        primal, dual = residuals
        ratio = x / s
        # Bᵀ D B for each diagonal D, of which one triangle is formed.
        rho = self.kept.shape[1]
        equations = ratio.new_zeros(len(ratio), rho, rho)
        equations[:, self._pairs[0], self._pairs[1]] = ratio @ self._products
        diagonal = equations.diagonal(dim1=1, dim2=2)
        diagonal.add_(1e-15 * diagonal.amax(1, keepdim=True))
        factor = torch.linalg.cholesky_ex(equations)[0]

        def direction(product: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            right = primal + (ratio * dual - product / s) @ self.kept
            dy = torch.cholesky_solve(right[..., None], factor)[..., 0]
            ds = dual - dy @ self.kept.mT
            return (product - x * ds) / s, dy, ds

        dx, _, ds = direction(-x * s)
        reached = ((x + _length(x, dx) * dx) * (s + _length(s, ds) * ds)).mean(1)
        centring = (reached / mean) ** 3
        dx, dy, ds = direction((centring * mean)[:, None] - x * s - dx * ds)
        forward, backward = (
            (_SHORT_OF_BOUNDARY * _length(one, move, torch.inf)).clamp_max(1.0)
            for one, move in ((x, dx), (s, ds))
        )
        return x + forward * dx, y + backward * dy, s + backward * ds

    def _vertices(
        self,
        costs: Float[Tensor, "program key"],
        right: Float[Tensor, "program rho"],
        points: Tensor,
    ) -> tuple[Float[Tensor, "program key"], Float[Tensor, "program rho"]]:
        """Return the vertex whose support are the largest entries of each point, and its multipliers."""
        basic = points.topk(self.kept.shape[1], dim=1).indices
        basis = self.kept[basic]
        weights = torch.linalg.solve_ex(basis.mT, right)[0]
        multipliers = torch.linalg.solve_ex(basis, costs.gather(1, basic))[0]
        return torch.zeros_like(points).scatter_(1, basic, weights), multipliers

    def _certified(
        self,
        costs: Float[Tensor, "program key"],
        rows: Float[Tensor, "program key"],
        points: Tensor,
        multipliers: Tensor,
    ) -> "_Certified":
        """Return values and bounds, as `RowPrograms` has them; NaN proves nothing."""
        below = -points.amin(1).clamp_max(0.0)
        points = points.clamp_min(0.0)
        error = ((points - rows) @ self.kept).abs().amax(1)
        values = (costs * points).sum(1)
        reduced = costs - multipliers @ self.kept.mT
        bounds = (multipliers * (rows @ self.kept)).sum(1) + rows.sum(1) * reduced.amin(1)
        worst = torch.stack(
            [below, error, (values - bounds).abs() / costs.abs().amax(1).clamp_min(1.0)]
        ).amax(0)
        answer = values, torch.minimum(bounds, values), points, multipliers
        return _Certified(answer, worst <= ACCEPTED_ERROR, (values - bounds).abs())


@dataclass(frozen=True)
class _Certified:
    answer: tuple[Tensor, ...]
    proven: Bool[Tensor, " program"]
    gaps: Float[Tensor, " program"]


def _start(costs: Tensor, right: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return where the method starts: Mehrotra's point, positive and balanced."""
    x, y = right @ kept.mT, costs @ kept
    s = costs - y @ kept.mT
    x, s = (one + (-1.5 * one.amin(1, keepdim=True)).clamp_min(0.0) for one in (x, s))
    product = (x * s).sum(1, keepdim=True)
    balance = [
        0.5 * product / one.sum(1, keepdim=True).clamp_min(SOLVER_TOLERANCE) for one in (s, x)
    ]
    return x + balance[0].clamp_min(1e-3 / x.shape[1]), y, s + balance[1].clamp_min(1e-3)


def _length(positive: Tensor, move: Tensor, most: float = 1.0) -> Float[Tensor, "program 1"]:
    """Return how far each can move, at most so far, before an entry is zero."""
    return torch.where(move < 0, -positive / move, torch.inf).amin(1, keepdim=True).clamp_max(most)
