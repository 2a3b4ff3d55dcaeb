"""What attention rollout may be while every head's output stays the same: bounds by dynamic programming, and maps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import ProjectedValues, SimplexSpace
from identilens.linalg.checks import check_finite
from identilens.linalg.interior import SharedPrograms
from identilens.measures.attention.checks import checked_weights
from identilens.measures.attention.determined import shared_spaces
from identilens.measures.attention.row_solver import allowed_change, movable_keys

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
    needed = torch.zeros(n, dtype=torch.bool, device=device)
    needed[list(range(n) if queries is None else queries)] = True
    asked = needed.nonzero()[:, 0] if queries is None else torch.tensor([*queries], device=device)
    prepared = []
    for heads in reversed(layers):
        prepared.append(_Layer.of(heads, needed, tolerance))
        needed = prepared[-1].reached
    prepared.reverse()
    costs = functionals.detach().double().to(device)
    value = costs
    for layer in prepared:
        value = 0.5 * value + 0.5 * value @ layer.mean.mT
    both = torch.cat([costs, -costs])
    bounds, reached, maps = both, both, []
    for number, layer in enumerate(prepared):
        found = layer.least(bounds, reached, witnesses)
        bounds, reached = found[:2]
        maps.append(found[2])
        step(number + 1)
    gap = float((reached - bounds)[:, asked].max()) if both.numel() else 0.0
    value = value[:, asked]
    least, greatest = bounds[:, asked].chunk(2)
    ends = torch.minimum(least, value), torch.maximum(-greatest, value)
    halves = [list(one) for one in zip(*(one.chunk(2) for one in maps), strict=True)]
    value, lo, hi = (one.to(functionals.device) for one in (value, *ends))
    return RolloutBounds(value, lo, hi, max(gap, 0.0), *(halves if witnesses else ()))


@dataclass(frozen=True)
class _Layer:
    """The rows of a layer's heads that count, in groups that see the same keys."""

    groups: list["_Group"]
    weights: Float[Tensor, "head query key"]
    reached: Bool[Tensor, " input"]

    @classmethod
    def of(
        cls, heads: Sequence[HeadRows], needed: Bool[Tensor, " query"], tolerance: float
    ) -> "_Layer":
        """Return the groups of rows that are needed, and which rows of the layer below they need."""
        T, visible = heads[0].projected, heads[0].visible
        T = replace(T, values=torch.stack([one.projected.compact for one in heads]), output=None)
        weights = torch.stack([checked_weights(one.weights, T, one.visible) for one in heads])
        rows, reached = needed.nonzero()[:, 0], needed.clone()
        allowed, groups = allowed_change(weights, T, tolerance), []
        seen = None if visible is None else visible[rows]
        for space, (_, _, keys), some in shared_spaces(T, len(rows), seen):
            queries = rows[some]
            own = weights[:, queries[:, None], keys]
            groups.append(_Group(queries, keys, own, space, allowed[:, queries]))
            reached |= space.visible
        return cls(groups, weights, reached)

    @property
    def mean(self) -> Float[Tensor, "query key"]:
        """The mean of the maps."""
        return self.weights.mean(0)

    def least(
        self,
        bounds: Float[Tensor, "functional input"],
        reached: Float[Tensor, "functional input"],
        witnesses: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return bounds of the least values after this layer, the values that were reached, and the maps.

        The maps have no functionals if they are not asked for.
        """
        lower, value = 0.5 * bounds, 0.5 * reached
        maps = self.weights.expand(len(bounds) if witnesses else 0, -1, -1, -1).clone()
        for group in self.groups:
            together = max(1, _PROGRAMS // (len(self.weights) * len(group.queries)))
            for part in torch.arange(len(bounds), device=bounds.device).split(together):
                least, points = group.least(bounds[part])
                if witnesses:
                    place = part[:, None, None], slice(None), group.queries[:, None], group.keys
                    maps[place] = points.permute(0, 2, 3, 1)
                along = points * reached[part][:, None, None, group.keys]
                place = part[:, None], group.queries
                lower[place] += 0.5 * least.mean(1)
                value[place] += 0.5 * along.sum(-1).mean(1)
        return lower, value, maps


@dataclass(frozen=True)
class _Group:
    """Rows of all heads that see the same keys, on these keys."""

    queries: Int[Tensor, " row"]
    keys: Int[Tensor, " seen"]
    rows: Float[Tensor, "head row seen"]
    space: SimplexSpace
    allowed: Float[Tensor, "head row"]

    def least(
        self, costs: Float[Tensor, "functional input"]
    ) -> tuple[Float[Tensor, "functional head row"], Float[Tensor, "functional head row seen"]]:
        """Return proven lower bounds of costs over the alternatives of each row, and alternatives near the optima."""
        costs, count = costs[:, self.keys], len(costs)
        bounds = (self.rows @ costs.mT).permute(2, 0, 1).clone()
        points = self.rows.expand(count, -1, -1, -1).clone()
        movable = movable_keys(self.space, float(self.allowed.max())).any(1)
        heads = movable.nonzero()[:, 0]
        if len(heads):
            reach = self.allowed[heads, :, None] / self.space.scales[heads, None]
            optima = SharedPrograms(self.space.seen[heads]).minimise(
                costs.repeat_interleave(self.rows.shape[1], 0).expand(len(heads), -1, -1),
                *(one.repeat(1, count, 1) for one in (self.rows[heads], reach)),
            )
            found = optima.bounds.unflatten(1, (count, -1)).transpose(0, 1)
            bounds[:, heads] = torch.minimum(found, bounds[:, heads])
            points[:, heads] = optima.points.unflatten(1, (count, -1)).transpose(0, 1)
        return bounds, points
