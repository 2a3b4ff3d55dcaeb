"""Linear programs over one row's alternatives on the simplex.

Every program runs over P = {x >= 0 : xᵀ B = aᵀ B}, where B's orthonormal columns span [T, 1]: the
distributions which give the same output as the weights a. Answers carry a certificate that is
computed here, in float64, from the solver's multipliers; the solver itself is not trusted.
"""

from dataclasses import dataclass

import highspy
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import NumericalError

SOLVER_TOLERANCE = 1e-10
"""Feasibility asked of HiGHS, the tightest that it accepts."""

ACCEPTED_ERROR = 1e-8
"""Largest infeasibility, lost output or duality gap of an answer that is returned."""

_OPTIONS = {
    "presolve": "off",
    "solver": "simplex",
    "threads": 1,
    "small_matrix_value": 1e-12,
    "primal_feasibility_tolerance": SOLVER_TOLERANCE,
    "dual_feasibility_tolerance": SOLVER_TOLERANCE,
    "simplex_strategy": 4,  # primal: the last vertex stays feasible when only the cost changes
}


@dataclass(frozen=True)
class Optimum:
    """The least value of a linear cost over P, between two proven bounds.

    Attributes:
        value: Cost of ``point``: the minimum is at most this.
        bound: Dual bound: the minimum is at least this. ``value - bound`` is below ``ACCEPTED_ERROR``.
        point: Distribution in P that reaches ``value``.
        multipliers: y that proves the bound.
    """

    value: float
    bound: float
    point: Float[Tensor, " key"]
    multipliers: Float[Tensor, " rho"]


@dataclass(frozen=True)
class LeastNorm:
    """The distribution of least Euclidean norm in P.

    Attributes:
        point: The distribution.
        gap: Duality gap of ‖x‖²/2; the true minimiser lies within sqrt(2 * gap) of ``point``.
        error: Largest |xᵀ B − aᵀ B|.
    """

    point: Float[Tensor, " key"]
    gap: float
    error: float


class _QuietSolver(highspy.Highs):
    """HiGHS that writes nothing to the standard output, which belongs to the program: not even its first lines."""

    def enableCallbacks(self) -> None:  # noqa: N802 - its own name; called by its constructor, which prints there
        """Turn off the output, then enable callbacks."""
        self.silent()
        super().enableCallbacks()


class RowPrograms:
    """Linear programs over the alternatives of one row, each started from the last one's basis.

    The model is passed to HiGHS once; between programs only the cost changes, so that the last vertex
    stays feasible and the primal simplex method goes on from it.

    Args:
        weights_row: a, non-negative.
        kept: B, orthonormal columns that span [T, 1] (so that Σ x is the same all over P).
    """

    def __init__(self, weights_row: Float[Tensor, " key"], kept: Float[Tensor, "key rho"]):
        self._weights = weights_row.detach().double().cpu().numpy()
        self._kept = np.ascontiguousarray(kept.detach().double().cpu().numpy())
        self._right_side = self._kept.T @ self._weights
        self._total = float(self._weights.sum())
        self._columns = np.arange(len(self._weights), dtype=np.int32)
        self._solver = _QuietSolver()
        self._solver.silent()
        self._configure()
        # A warning only says that entries below `small_matrix_value` were dropped; the certificates see to that.
        keys, equations = self._kept.shape
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = keys, equations
        model.col_cost_ = np.zeros(keys)
        model.col_lower_ = np.zeros(keys)
        model.col_upper_ = np.full(keys, highspy.kHighsInf)
        model.row_lower_ = model.row_upper_ = self._right_side
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_ = np.arange(0, keys * equations + 1, equations)
        model.a_matrix_.index_ = np.tile(np.arange(equations), keys)
        model.a_matrix_.value_ = self._kept.ravel()
        if self._solver.passModel(model) == highspy.HighsStatus.kError:
            raise NumericalError(
                f"HiGHS refused a program of {len(self._weights)} weights and {self._kept.shape[1]} equations; "
                "expected finite weights and values; check them for extreme magnitudes."
            )
        self.solved = 0

    def minimise(self, cost: Float[Tensor, " key"]) -> Optimum:
        """Return the least cost·x over P, with a certificate.

        For any multipliers y, r = cost − B y gives cost·x = y·Bᵀa + r·x >= y·Bᵀa + (Σ a) min_i r_i for
        every x in P: that number is ``bound``, valid whatever the solver did.

        Raises:
            NumericalError: The solver found no optimum, or its answer is not feasible, does not
                reproduce the output, or is not proven optimal, also after a cold start.
        """
        costs = cost.detach().double().cpu().numpy()
        self._solver.changeColsCost(len(costs), self._columns, costs)
        fault = "no run"
        for cold in (False, True):
            if cold:
                self._solver.clearSolver()
                self._solver.setOptionValue("simplex_strategy", 1)
                self._solver.setOptionValue("simplex_iteration_limit", highspy.kHighsIInf)
            self._solver.run()
            self.solved += 1
            optimum, fault = self._certified(costs)
            if cold:
                self._configure()
            if optimum is not None:
                return optimum
        raise NumericalError(
            f"expected an optimum proven to {ACCEPTED_ERROR:g} for a program of {len(costs)} weights and "
            f"{self._kept.shape[1]} equations; HiGHS gave {fault}; the values may be too badly scaled: "
            "try a larger tolerance."
        )

    def _configure(self) -> None:
        # The primal simplex method stalls on some degenerate rows; the dual one from a cold start does not.
        options = _OPTIONS | {"simplex_iteration_limit": 2 * sum(self._kept.shape)}
        for name, setting in options.items():
            self._solver.setOptionValue(name, setting)

    def _certified(self, costs: np.ndarray) -> tuple[Optimum | None, str]:
        status = self._solver.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            return None, f"the status '{self._solver.modelStatusToString(status)}'"
        solution = self._solver.getSolution()
        point, multipliers = np.array(solution.col_value), np.array(solution.row_dual)
        below = max(0.0, -float(point.min()))
        point = np.maximum(point, 0.0)
        error = float(np.abs(self._kept.T @ point - self._right_side).max())
        value = float(costs @ point)
        reduced = costs - self._kept @ multipliers
        bound = float(self._right_side @ multipliers) + self._total * float(reduced.min())
        scale = max(1.0, float(np.abs(costs).max()))
        # Written so that NaN fails, too.
        if not (
            below <= ACCEPTED_ERROR
            and error <= ACCEPTED_ERROR
            and abs(value - bound) <= ACCEPTED_ERROR * scale
        ):
            return (
                None,
                f"a weight {below:.1e} below zero, an output error {error:.1e}, a gap {value - bound:.1e}",
            )
        return Optimum(
            value, min(bound, value), torch.from_numpy(point), torch.from_numpy(multipliers)
        ), ""
