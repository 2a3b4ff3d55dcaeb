"""Heads whose queries and keys are made by shared parameters: which alternatives other parameters give."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg.checks import check_finite, check_mask, explained
from identilens.linalg.decompositions import singular_values
from identilens.linalg.softmax import visible_softmax
from identilens.measures.attention.realisable.dimension import (
    COPIES,
    MEMORY_LIMIT,
    RANK_TOLERANCE,
    RealisableDimension,
    cut_rank,
    refuse_size,
)
from identilens.measures.attention.realisable.softmax_map import (
    RIDGE,
    Constraints,
    output_constraints,
    weight_constraints,
)
from identilens.measures.attention.realisable.walk import OUTPUT_LIMIT, Walk
from identilens.measures.attention.simplex import total_variation

_CHUNK = 2**23
"""Entries of the gradients that are computed at once."""


@dataclass(frozen=True)
class TiedHeads:
    """Heads whose logits come from the same parameters, on one text; the rows of all heads are stacked.

    Attributes:
        logits: The logits of all rows for some parameters, before the mask; finite and differentiable, in float64.
        parameters: Those that give the heads' own attention.
        visible: True where a row sees a key.
        kept: C_i of each row: orthonormal basis of the columns of its head's T minus their mean over the visible keys.
        rows: The rows of the head that is looked at; all by default.
    """

    logits: Callable[[Float[Tensor, " parameter"]], Float[Tensor, "row key"]]
    parameters: Float[Tensor, " parameter"]
    visible: Bool[Tensor, "row key"]
    kept: tuple[Tensor, ...]
    rows: slice = field(default_factory=lambda: slice(None))

    def __post_init__(self) -> None:
        """Raise InputError for tensors that do not belong together, NumericalError for NaN or infinity."""
        check_finite(parameters=self.parameters)
        keys = self.visible.shape[1:]
        check_mask(self.visible, len(self.kept), keys.numel())
        made = (self.logits(self.parameters).mT, *self.kept)
        given = {(one.dtype, one.shape[:-1]) for one in made} | {(self.parameters.dtype, keys)}
        if given != {(torch.float64, keys)}:
            raise InputError(
                "expected parameters, logits (row, key) and bases (key, r) in float64, of the keys of visible; got "
                f"{given}; pass tensor.double(), and ProjectedValues.output_bases of each head."
            )

    @property
    def unit(self) -> float:
        """The Jacobian leaves out no factor."""
        return 1.0

    @property
    def shared(self) -> bool:
        """Whether all rows have the same basis."""
        return all(basis is self.kept[0] for basis in self.kept)

    @property
    def start(self) -> tuple[Tensor, ...]:
        """The heads' own parameters."""
        return (self.parameters,)

    @torch.no_grad()
    def weights(self, parameters: Float[Tensor, " parameter"]) -> Float[Tensor, "row key"]:
        """Return the weights that some parameters give."""
        return visible_softmax(self.logits(parameters), self.visible)

    def at(self, point: Sequence[Tensor]) -> Tensor:
        """Return the weights that some parameters give."""
        return self.weights(point[0])

    def slope(self, logits: Tensor, point: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the gradient in the parameters of a function whose gradient in the logits is given."""
        return (self._gradients(point[0], logits[None])[0],)

    def linearised(self, weights: Tensor, point: Sequence[Tensor]) -> "_Dense":
        """Return the Jacobian of the output."""
        return _Dense(self, point[0], weights)

    def jacobian(self, conditions: Constraints, parameters: Tensor) -> Float[Tensor, "p parameter"]:
        """Return what a change of the parameters does to conditions on the change of the logits."""
        size = max(1, _CHUNK // max(1, self.visible.numel()))
        found = [parameters.new_zeros(0, len(parameters))]
        for rows, owner in zip(
            conditions.rows.split(size), conditions.owner.split(size), strict=True
        ):
            cotangents = rows.new_zeros(len(rows), *self.visible.shape)
            cotangents[torch.arange(len(rows)), owner] = rows
            found += [self._gradients(parameters, cotangents)] if len(rows) else []
        return torch.cat(found)

    def _gradients(
        self, parameters: Tensor, cotangents: Float[Tensor, "p row key"]
    ) -> Float[Tensor, "p parameter"]:
        with torch.enable_grad():
            point = parameters.detach().requires_grad_()
            return torch.autograd.grad(
                self.logits(point), point, cotangents, is_grads_batched=True
            )[0]


class _Dense:
    """The Jacobian J of the output at one point, with orthonormal rows for each query."""

    def __init__(self, tied: TiedHeads, parameters: Tensor, weights: Tensor) -> None:
        conditions, self.maps = output_constraints(tied, weights)
        self.jacobian = tied.jacobian(conditions, parameters)
        gram = self.jacobian @ self.jacobian.mT
        gram.diagonal().add_(RIDGE * gram.diagonal().mean())
        self.factor = torch.linalg.cholesky_ex(gram).L

    def forward(self, move: Sequence[Tensor]) -> Tensor:
        return self.jacobian @ move[0]

    def least_move(self, target: Tensor) -> tuple[Tensor, ...]:
        return (self.jacobian.mT @ torch.cholesky_solve(target[:, None], self.factor)[:, 0],)


@dataclass(frozen=True)
class TiedAlternative:
    """Other parameters, and the weights that they give.

    Attributes:
        parameters: θ'.
        weights: A' of all rows.
        original: A.
        distance: Mean total variation distance between the rows of A and A' of the head that is looked at.
        row_distance: The distance of every row.
        output_error: ‖(A' − A) C‖_F / max(‖A C‖_F, 0.001 ‖A‖_F), C the orthonormal bases of the outputs.
        reached: Whether ``distance`` is at least the requested distance.
        steps: Number of accepted steps.
    """

    parameters: Float[Tensor, " parameter"]
    weights: Float[Tensor, "row key"]
    original: Float[Tensor, "row key"]
    distance: float
    row_distance: Float[Tensor, " row"]
    output_error: float
    reached: bool
    steps: int


@explained
def tied_dimension(
    tied: TiedHeads,
    *,
    formula: int | None = None,
    rank_tolerance: float = RANK_TOLERANCE,
    memory_limit: int = MEMORY_LIMIT,
) -> RealisableDimension:
    """Return the local dimension of the alternatives that other parameters give, all outputs of all heads unchanged.

    It is rank J_A − rank J_F, of the Jacobians of the weights and of the outputs in the parameters, by dense SVDs.
    ``formula`` is what is expected of generic tensors, where that is known. The parameters are regular if random ones
    give J_A the same rank, for the rank at random is the largest that analytic logits have.

    Examples:
        >>> import torch
        >>> from identilens.linalg import ProjectedValues
        >>> from identilens.measures.attention import tied_dimension
        >>> from identilens.measures.attention.realisable.tied import TiedHeads
        >>> draw = torch.Generator().manual_seed(0)
        >>> x, T, W = (torch.randn(10, size, generator=draw, dtype=torch.float64) for size in (10, 2, 9))
        >>> def logits(parameters):  # two heads with keys of size 3
        ...     first, second, keys = parameters.view(10, 9).split(3, 1)
        ...     return torch.cat([x @ first, x @ second]) @ (x @ keys).T
        >>> kept = ProjectedValues.of(T, torch.eye(2).double()).simplex_space().kept[:, 1:]
        >>> tied = TiedHeads(logits, W.flatten() / 3, torch.ones(20, 10, dtype=torch.bool), (kept,) * 20)
        >>> found = tied_dimension(tied)
        >>> found.dimension, found.gauge
        (38, 12)

    Raises:
        InputError: For Jacobians beyond ``memory_limit`` bytes.
    """
    point = tied.parameters
    seen = int((tied.visible.sum(-1) - 1).sum())
    refuse_size(COPIES * 8 * seen * len(point), memory_limit, formula)
    conditions, _ = output_constraints(tied, tied.weights(point), row_tolerance=0.0)
    free = weight_constraints(tied)
    weights_rank, gap_a = _rank(tied.jacobian(free, point), rank_tolerance)
    # Normal parameters of the same mean square; of 1 in place of 0.
    generator = torch.Generator().manual_seed(0)
    size = float(point.square().mean().sqrt()) or 1.0
    drawn = size * torch.randn(point.shape, generator=generator, dtype=torch.float64)
    generic_rank, _ = _rank(tied.jacobian(free, drawn.to(point.device)), rank_tolerance)
    jacobian_rank, gap = _rank(tied.jacobian(conditions, point), rank_tolerance)
    return RealisableDimension(
        dimension=weights_rank - jacobian_rank,
        formula=formula,
        parameters=len(point),
        jacobian_rank=jacobian_rank,
        weights_rank=weights_rank,
        output_rank=sum(basis.shape[1] for basis in tied.kept),
        gap=min(gap, gap_a),
        regular=weights_rank >= generic_rank,
        tolerance=rank_tolerance,
    )


@explained
def tied_alternative(
    tied: TiedHeads,
    *,
    distance: float = 0.1,
    max_steps: int = 300,
    memory_limit: int = MEMORY_LIMIT,
    generator: torch.Generator | None = None,
) -> TiedAlternative:
    """Return parameters with which one head has other attention, at a distance, and all heads the same outputs.

    The walk of `realisable_alternative`, in the parameters. Every step computes the Jacobian and a dense Cholesky
    factor of N = Σ rank([T, 1]) − 1 conditions.

    Examples:
        >>> import torch
        >>> from identilens.linalg import ProjectedValues
        >>> from identilens.measures.attention import tied_alternative
        >>> from identilens.measures.attention.realisable.tied import TiedHeads
        >>> draw = torch.Generator().manual_seed(0)
        >>> x, T, W = (torch.randn(10, size, generator=draw, dtype=torch.float64) for size in (10, 2, 9))
        >>> def logits(parameters):  # two heads with keys of size 3
        ...     first, second, keys = parameters.view(10, 9).split(3, 1)
        ...     return torch.cat([x @ first, x @ second]) @ (x @ keys).T
        >>> kept = ProjectedValues.of(T, torch.eye(2).double()).simplex_space().kept[:, 1:]
        >>> tied = TiedHeads(logits, W.flatten() / 3, torch.ones(20, 10, dtype=torch.bool), (kept,) * 20)
        >>> found = tied_alternative(tied, distance=0.01, generator=draw)
        >>> found.reached, found.output_error < 1e-13
        (True, True)

    Raises:
        InputError: For a distance outside (0, 1), or Jacobians beyond ``memory_limit`` bytes.
    """
    if not 0 < distance < 1:
        raise InputError(
            f"expected a distance in (0, 1); got {distance}; it is a mean total variation distance."
        )
    size = sum(basis.shape[1] for basis in tied.kept)
    refuse_size(COPIES * 8 * size * max(size, len(tied.parameters)), memory_limit, None)
    walk = Walk(tied, generator, tied.rows, OUTPUT_LIMIT)
    walk.go(distance, max_steps)
    walk.polish()
    return TiedAlternative(
        walk.point[0],
        walk.weights,
        walk.original,
        walk.distance,
        total_variation(walk.original, walk.weights),
        walk.output_error,
        walk.distance >= distance * (1 - 1e-6),
        walk.steps,
    )


def _rank(jacobian: Tensor, tolerance: float) -> tuple[int, float]:
    sigma = singular_values(jacobian)
    return cut_rank(sigma, tolerance * float(sigma.max())) if sigma.numel() else (0, float("inf"))
