"""Projection weights that give requested queries or keys on one text."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg.checks import check_finite, explained
from identilens.linalg.factor import least_squares

ACCEPTED_ERROR = 1e-8
"""Largest accepted relative error of the projection's queries or keys."""


@dataclass(frozen=True)
class ChangedProjection:
    """A linear layer that maps the text's embeddings to the requested vectors.

    Attributes:
        weight: d_k x d_model, as in ``torch.nn.Linear``.
        bias: d_k, or None if the layer has none.
        error: ‖E W'ᵀ + b' − wanted‖_F / ‖wanted‖_F.
        change: ‖W' − W‖_F / ‖W‖_F.
    """

    weight: Float[Tensor, "d_k d_model"]
    bias: Float[Tensor, " d_k"] | None
    error: float
    change: float


@explained
def changed_projection(
    embeddings: Float[Tensor, "n d_model"],
    wanted: Float[Tensor, "n d_k"],
    weight: Float[Tensor, "d_k d_model"],
    bias: Float[Tensor, " d_k"] | None = None,
) -> ChangedProjection:
    """Return the least change of weight and bias that makes E Wᵀ + b equal to the requested queries or keys.

    (W' − W, b' − b) = [E, 1]⁺ (wanted − E Wᵀ − b). Always possible when [E, 1] has full row rank, which needs
    n <= d_model (+ 1 with a bias) and no two equal rows. The change is for this text only: on another text the layer
    gives other vectors. E is the input of the layer; W and b belong to this head; ``wanted`` is Q' or K' before any
    rotation or scaling that follows the layer.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import changed_projection
        >>> generator = torch.Generator().manual_seed(0)
        >>> embeddings, wanted = torch.randn(4, 8, generator=generator), torch.randn(4, 2, generator=generator)
        >>> found = changed_projection(embeddings, wanted, torch.zeros(2, 8))
        >>> torch.allclose(embeddings.double() @ found.weight.double().T, wanted.double(), atol=1e-5)
        True

    Raises:
        InputError: Embeddings with dependent rows, for which no projection gives the requested vectors.
    """
    E, goal, W = embeddings.detach().double(), wanted.detach().double(), weight.detach().double()
    check_finite(embeddings=E, wanted=goal)
    b = None if bias is None else bias.detach().double()
    design, present = E, E @ W.mT
    if b is not None:
        design, present = torch.cat([E, torch.ones_like(E[:, :1])], 1), present + b
    solution = least_squares(design, goal - present)
    weight_change = solution[: E.shape[1]].mT
    new_weight, new_bias = W + weight_change, None if b is None else b + solution[-1]
    given = E @ new_weight.mT + (0.0 if new_bias is None else new_bias)
    error = float(
        torch.linalg.matrix_norm(given - goal) / torch.linalg.matrix_norm(goal).clamp_min(1e-300)
    )
    if not error <= ACCEPTED_ERROR:
        rank = int(torch.linalg.matrix_rank(design))
        raise InputError(
            f"expected embeddings of full row rank, {len(E)}; got rank {rank} (d_model = {E.shape[1]}), and the best "
            f"projection has an error of {error:.1e}; use a text of at most d_model tokens without repeated embeddings."
        )
    change = float(
        torch.linalg.matrix_norm(weight_change) / torch.linalg.matrix_norm(W).clamp_min(1e-300)
    )
    return ChangedProjection(new_weight, new_bias, error, change)
