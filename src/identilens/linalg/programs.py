"""The linear program of one row's alternatives, by scipy's simplex method: for what is not solved many at once.

Every program runs over P = {x >= 0 : xᵀ B = aᵀ B}, where B's orthonormal columns span [T, 1]: the distributions which
give the same output as the weights a. The solver is not trusted: bounds are proven from its multipliers.
"""

import torch
from jaxtyping import Float
from scipy.optimize import linprog
from torch import Tensor

from identilens.errors import NumericalError

SOLVER_TOLERANCE = 1e-10
"""Feasibility asked of the solver, the tightest that it accepts."""

ACCEPTED_ERROR = 1e-8
"""Largest infeasibility, lost output or duality gap of an answer that is returned."""

_OPTIONS = {
    "presolve": False,
    "primal_feasibility_tolerance": SOLVER_TOLERANCE,
    "dual_feasibility_tolerance": SOLVER_TOLERANCE,
}


def by_simplex(
    cost: Float[Tensor, " key"], row: Float[Tensor, " key"], kept: Float[Tensor, "key rho"]
) -> tuple[Float[Tensor, " key"], Float[Tensor, " rho"]]:
    """Return a point of least cost·x in P, and the multipliers of xᵀ B.

    Raises:
        NumericalError: The solver finds no optimum in P.
    """
    costs, equations, right = (part.cpu().numpy() for part in (cost, kept.mT, row @ kept))
    result = linprog(costs, A_eq=equations, b_eq=right, method="highs-ds", options=_OPTIONS)
    if result.status or abs(result.con).max() > ACCEPTED_ERROR:
        raise NumericalError(
            f"expected the least value of a program of {len(row)} weights; the solver says: {result.message}. The "
            "values may be too badly scaled: try a larger tolerance."
        )
    point = torch.from_numpy(result.x).clamp_min(0.0).to(row.device)
    return point, torch.from_numpy(result.eqlin.marginals).to(row.device)
