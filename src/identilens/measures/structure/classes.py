"""The equivalence relations of structure2025, II.B, as predicates with a tolerance."""

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import ProjectedValues, projected
from identilens.linalg.checks import check_finite, check_width

Relation = Literal["output", "row_sums", "simplex"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)
TOLERANCE = 1e-6


def equivalent(
    first: Float[Tensor, "query key"],
    second: Float[Tensor, "query key"],
    values: Float[Tensor, "key d_v"] | ProjectedValues,
    output_projection: Float[Tensor, "d_v d_model"] | None = None,
    *,
    relation: Relation = "output",
    tolerance: float = TOLERANCE,
) -> bool:
    """Return whether two sets of weights are equivalent for one head on one text (structure2025, II.B).

    ``output``: A₁ T = A₂ T. ``row_sums``: also A₁ 1 = A₂ 1 = 1. ``simplex``: also A₁ >= 0, A₂ >= 0. Each relation is
    finer than the previous one. Outputs are compared row by row, in units of T's longest row; the output of a
    distribution has no longer row.

    With tolerance 0 and exact arithmetic these are equivalence relations: the first on all matrices, the others on
    matrices whose rows sum to 1 (and are non-negative), because other matrices are not equivalent to themselves. With a
    tolerance they are still reflexive and symmetric; for transitivity the tolerances add up. ``values`` is V, value
    bias included, or T itself without a projection.

    Examples:
        >>> import torch
        >>> from identilens.measures.structure import equivalent
        >>> values = torch.tensor([[1.0], [1.0], [0.0]])
        >>> first, second = torch.tensor([[0.2, 0.3, 0.5]]), torch.tensor([[0.4, 0.1, 0.5]])
        >>> equivalent(first, second, values), equivalent(first, first.flip(-1), values)
        (True, False)

    Raises:
        InputError: For shapes that do not fit, an unknown relation or a negative tolerance.
        NumericalError: For NaN or infinite entries.
    """
    if relation not in RELATIONS:
        raise InputError(f"relation must be one of {', '.join(RELATIONS)}; got {relation!r}.")
    if not tolerance >= 0:
        raise InputError(f"tolerance must be 0 or more; got {tolerance}.")
    compact = projected(values, output_projection).compact
    for name, weights in (("first", first), ("second", second)):
        check_width(name, weights, compact, compact.shape[-2])
    if first.shape != second.shape:
        raise InputError(
            f"expected weights of one shape; got {tuple(first.shape)} and {tuple(second.shape)}."
        )
    check_finite(first=first, second=second)
    unit = (
        torch.linalg.vector_norm(compact, dim=-1).max().clamp_min(torch.finfo(torch.float64).tiny)
    )
    # A difference has the same length in the compact basis as in the coordinates of T.
    apart = torch.linalg.vector_norm((first.double() - second.double()) @ compact, dim=-1).max()
    pair = torch.stack([first, second]).double()
    same = ~(apart > tolerance * unit)
    if relation != "output":
        same &= ~((pair.sum(-1) - 1).abs() > tolerance).any()
    if relation == "simplex":
        same &= (pair >= -tolerance).all()
    return bool(same)
