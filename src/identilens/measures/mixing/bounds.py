"""What attention rollout may be while every head's output stays the same: bounds by dynamic programming, and maps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import ProjectedValues
from identilens.linalg.checks import check_finite
from identilens.measures.attention.checks import checked_weights
from identilens.measures.attention.determined import shared_spaces
from identilens.measures.attention.row_programs import allowed_change, optima_of

_PROGRAMS = 512
"""Programs that run together: more are slower, as they do not stay in the cache."""

Maps = list[Float[Tensor, "functional head row key"]]
"""Attention maps of every layer, for each functional."""


@dataclass(frozen=True)
class HeadRows:
    """The attention of one head of a layer.

    Attributes:
        weights: A, rows that sum to one.
        projected: T = V W_O.
        visible: Which keys each query sees, the same in all heads of a layer; None where every query sees all.
    """

    weights: Float[Tensor, "query key"]
    projected: ProjectedValues
    visible: Bool[Tensor, "query key"] | None = None


@dataclass(frozen=True)
class RolloutBounds:
    """Rollout functionals of some queries, between proven bounds over all maps that leave every head's output the same.

    Attributes:
        value: e_iᵀ R_L c with the weights as they are.
        lo: No alternative has less.
        hi: No alternative has more.
        gap: Largest distance between a bound and the value that the maps found for it have.
        least_maps: Maps that give ``lo`` at every query, if they were asked for.
        greatest_maps: Maps that give ``hi`` at every query, if they were asked for.
    """

    value: Float[Tensor, "functional query"]
    lo: Float[Tensor, "functional query"]
    hi: Float[Tensor, "functional query"]
    gap: float
    least_maps: Maps | None = None
    greatest_maps: Maps | None = None


def rollout_bounds(
    layers: Sequence[Sequence[HeadRows]],
    functionals: Float[Tensor, "functional input"],
    *,
    queries: Sequence[int] | None = None,
    tolerance: float = 0.0,
    witnesses: bool = False,
    step: Callable[[int], None] = lambda layers: None,
) -> RolloutBounds:
    """Return proven bounds of c · (row i of the rollout R_L) over all maps that leave every head's output the same.

    R_l = (A_l / 2 + I / 2) R_{l−1}, A_l the mean over heads (Abnar & Zuidema 2020; `attention_rollout`). Heads whose
    outputs stay the same leave all hidden states the same, so each row of each head of each layer can be chosen by
    itself. This is a Markov decision process, and Bellman's recursion gives its optimum for all queries at once:

        u_0 = c,   u_l(i) = u_{l−1}(i) / 2 + 1 / (2 H) Σ_h max over alternatives a' of row i of a' · u_{l−1}

    and likewise for the minimum. Coefficients are non-negative, so bounds of the programs add up to bounds of u_L.
    With c = e_j it is the value of token j; with c = e_j − e_k, a lower bound above 0 proves that j is above k.

    Args:
        layers: The heads of each layer, first layer first, all on one text.
        functionals: Coefficients c of the input tokens, a row for each functional.
        queries: The rows of R_L; all by default. Rows that they cannot depend on are left out.
        tolerance: Change of each head's output at each row, over its length, that counts as none. Hidden states then
            change, and weights and values of later layers with them: the recursion holds these as they are.
        witnesses: Return also maps that reach the bounds.
        step: Called after each layer with the number of layers that are done.

    Returns:
        Bounds for each functional and query. Two programs for each functional and each row of each head that has
        alternatives; all rows of a head that see the same keys share their work.

    Raises:
        InputError: Weights that are no distributions, layers of different lengths, or no layers.
        NumericalError: A program whose optimum cannot be proven.

    Examples:
        >>> import torch
        >>> from identilens.linalg import ProjectedValues
        >>> from identilens.measures.mixing import HeadRows, rollout_bounds
        >>> values = torch.tensor([[0.0], [1.0], [2.0]]).double()  # the second is the mean of the others
        >>> weights = torch.tensor([[0.25, 0.5, 0.25]] * 3).double()
        >>> head = HeadRows(weights, ProjectedValues.of(values, torch.eye(1).double()))
        >>> found = rollout_bounds([[head]], torch.eye(3).double(), queries=[0])
        >>> [end.flatten().tolist() for end in (found.lo.round(decimals=6), found.hi.round(decimals=6))]
        [[0.5, 0.0, 0.0], [0.75, 0.5, 0.25]]
    """
    check_finite(functionals=functionals)
    n = functionals.shape[1]
    sizes = {tuple(head.weights.shape) for heads in layers for head in heads}
    if sizes != {(n, n)}:
        raise InputError(
            f"expected maps over the {n} tokens of the functionals, of at least one layer; got maps of shapes "
            f"{sorted(sizes)}; pass the heads of self-attention of every layer on one text."
        )
    device = layers[0][0].weights.device
    every = torch.arange(n, device=device)
    asked = every if queries is None else every[[*queries]]
    needed = [asked]
    for heads in layers[:0:-1]:
        visible, rows = heads[0].visible, needed[-1]
        below = every if visible is None else torch.cat([rows, visible[rows].nonzero()[:, 1]])
        needed.append(below.unique())
    value = functionals.detach().double().to(device)
    bounds = reached = torch.cat([value, -value])
    maps = []
    for number, heads in enumerate(layers):
        T, visible = heads[0].projected, heads[0].visible
        compact = torch.stack([head.projected.compact for head in heads])
        T = replace(T, values=compact, output=None)
        weights = torch.stack([checked_weights(head.weights, T, visible) for head in heads])
        value = 0.5 * value + 0.5 * value @ weights.mean(0).mT
        rows, below = needed[-1 - number], (bounds, reached)
        bounds, reached, witness = _least(weights, T, visible, rows, tolerance, below, witnesses)
        maps.append(witness)
        step(number + 1)
    gap = float((reached - bounds)[:, asked].max()) if bounds.numel() else 0.0
    value = value[:, asked]
    least, greatest = bounds[:, asked].chunk(2)
    ends = torch.minimum(least, value), torch.maximum(-greatest, value)
    halves = [*map(list, zip(*(part.chunk(2) for part in maps), strict=True))]
    value, lo, hi = (end.to(functionals.device) for end in (value, *ends))
    return RolloutBounds(value, lo, hi, max(gap, 0.0), *(halves if witnesses else ()))


def _least(
    weights: Float[Tensor, "head query key"],
    T: ProjectedValues,
    visible: Bool[Tensor, "query key"] | None,
    queries: Int[Tensor, " row"],
    tolerance: float,
    below: tuple[Float[Tensor, "functional input"], Float[Tensor, "functional input"]],
    witnesses: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return bounds of the least values after a layer at some queries, the values that were reached, and the maps.

    ``below`` are the first two of the layer before. The maps have no functionals if they are not asked for.
    """
    lower, value = (0.5 * part for part in below)
    maps = weights.expand(len(lower) if witnesses else 0, -1, -1, -1).clone()
    allowed = allowed_change(weights, T, tolerance)
    mask = None if visible is None else visible[queries]
    for space, some, keys in shared_spaces(T, len(queries), mask):
        rows = queries[some]
        inside, reach = (
            weights[:, rows[..., None], keys].flatten(0, 1),
            allowed[:, rows].flatten(0, 1),
        )
        together = max(1, _PROGRAMS // (len(weights) * rows.numel()))
        for part in torch.arange(len(lower), device=lower.device).split(together):
            costs, reached = (side[part][:, keys] for side in below)
            costs = costs.expand(*inside.shape[:2], -1, -1)
            optima = optima_of(space, inside, costs, reach)
            points = optima.points
            for ends, values in ((lower, optima.bounds), (value, (points * reached).sum(-1))):
                heads = values.unflatten(0, (-1, len(rows)))
                ends[part[:, None, None], rows] += 0.5 * heads.mean(0).permute(2, 0, 1)
            if witnesses:
                cells = part[:, None, None, None], slice(None), rows[..., None], keys
                heads = points.unflatten(0, (-1, len(rows)))
                maps[cells] = heads.permute(3, 1, 2, 4, 0)
    return lower, value, maps
