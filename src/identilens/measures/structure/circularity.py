"""How far the null spaces of two texts agree: the circularity of structure2025, II.B."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.linalg import ProjectedValues, projected
from identilens.measures.attention.simplex import largest_step

_LEAST_MOVE = 1e-6
TOLERANCE = 1e-6
"""Relative change of an output up to which weights count as equivalent."""


@dataclass(frozen=True)
class Circularity:
    """Two equivalent weights of a first text, compared under the values of a second text; one entry per head.

    Attributes:
        freedom: Dimension of LN([T₁, 1]), the space in which the weights were changed; 0 if they cannot change.
        overlap: tr(P₁ P₂) / freedom, with P the projectors on the two null spaces. It is the mean squared share, of a
            change without effect under the first text, that has no effect under the second either. NaN if freedom is 0.
        chance: The same for a random null space of the dimension of LN([T₂, 1]) that keeps row sums.
        moved: Mean total variation distance between the weights and the alternative, in [0, 1].
        change_first: Relative change of the output under T₁; only rounding.
        change_second: Relative change of the output under T₂.
    """

    freedom: Int[Tensor, " head"]
    overlap: Float[Tensor, " head"]
    chance: Float[Tensor, " head"]
    moved: Float[Tensor, " head"]
    change_first: Float[Tensor, " head"]
    change_second: Float[Tensor, " head"]

    @property
    def able(self) -> Bool[Tensor, " head"]:
        """Whether the weights could be changed; one-hot rows cannot, even if T leaves freedom."""
        return self.moved > _LEAST_MOVE

    def disagree(self, tolerance: float) -> Bool[Tensor, " head"]:
        """Return for each head whether A₁ ~ A₂ under the first text but not under the second."""
        return self.able & (self.change_first <= tolerance) & (self.change_second > tolerance)


def circularity(
    weights: Float[Tensor, "head query key"],
    first: Float[Tensor, "head key d_v"] | ProjectedValues,
    second: Float[Tensor, "head key d_v"] | ProjectedValues,
    *,
    seed: int = 0,
) -> Circularity:
    """Return whether weights that are equivalent under a first text are equivalent under a second, as measures.

    For each head the weights A₁ of the first text are moved along a random direction of LN([T₁, 1]), by half of the
    largest step with non-negative weights. So A₁ ~ A₂ under the embedding E₁ by every relation of II.B. Under E₂ they
    are equivalent only if the direction is also in the null space of T₂. Every key is visible; both texts have the same
    length.
    """
    T1, T2 = projected(first), projected(second)
    n = T1.keys
    kept, other = (T.simplex_space().kept for T in (T1, T2))
    freedom = T1.simplex_nullity
    shared = (kept.mT @ other).square().sum((-2, -1))
    overlap = (freedom + T2.simplex_nullity - n + shared) / freedom
    A1 = weights.double()
    noise = torch.randn(
        A1.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    noise = noise.to(A1.device)
    for _ in range(2):  # The second projection removes the rounding of the first.
        noise = noise - noise @ kept @ kept.mT
    noise = torch.where((freedom > 0)[:, None, None], noise, 0.0)
    step = 0.5 * largest_step(A1, noise)
    move = noise * torch.where(torch.isfinite(step), step, 0.0)[..., None]

    def change(compact: Tensor) -> Tensor:
        size = torch.linalg.matrix_norm(A1 @ compact).clamp_min(1e-300)
        return torch.linalg.matrix_norm(move @ compact) / size

    return Circularity(
        freedom,
        torch.where(freedom > 0, overlap, torch.nan),
        T2.simplex_nullity.double() / max(1, n - 1),
        0.5 * move.abs().sum(-1).mean(-1),
        change(T1.compact),
        change(T2.compact),
    )
