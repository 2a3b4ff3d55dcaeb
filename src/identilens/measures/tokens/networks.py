"""The maps that a probe learns, and their loss."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import gelu
from torch.nn.init import xavier_uniform_

from identilens.measures.tokens.lookup import Distance

NORM_FLOOR = 1e-24  # Avoids division by zero for zero vectors.
# Matrices are stored transposed, d_in x d_out: gradients have the same memory order, so no step reorders them.
Parameters = tuple[Tensor, ...]
Features = Float[Tensor, "row d_in"]
Vectors = Float[Tensor, "row d_out"]


@dataclass(frozen=True)
class LinearNetwork:
    """g(e) = W e, no bias (Brunner et al. 2020, 4.2)."""

    def initial(self, d_in: int, d_out: int, generator: torch.Generator) -> Parameters:
        """Return Wᵀ, Glorot uniform."""
        return (_glorot(d_in, d_out, generator),)

    def apply(self, parameters: Parameters, features: Features) -> Vectors:
        """Return e Wᵀ."""
        return features @ parameters[0]


@dataclass(frozen=True)
class MlpNetwork:
    """g(e) = W₂ gelu(W₁ e + b₁) + b₂ with one hidden layer, 1000 wide in the paper (Brunner et al. 2020, B.1)."""

    hidden_units: int

    def initial(self, d_in: int, d_out: int, generator: torch.Generator) -> Parameters:
        """Return W₁ᵀ, b₁, W₂ᵀ, b₂: Glorot uniform weights, biases zero."""
        first = _glorot(d_in, self.hidden_units, generator)
        second = _glorot(self.hidden_units, d_out, generator)
        return (first, first.new_zeros(self.hidden_units), second, second.new_zeros(d_out))

    def apply(self, parameters: Parameters, features: Features) -> Vectors:
        """Return W₂ gelu(W₁ e + b₁) + b₂."""
        first, first_bias, second, second_bias = parameters
        return torch.addmm(second_bias, gelu(torch.addmm(first_bias, features, first)), second)


Network = LinearNetwork | MlpNetwork


def mean_loss(predicted: Vectors, targets: Vectors, distance: Distance) -> Float[Tensor, ""]:
    """Return the mean loss over rows (Brunner et al. 2020, 4.1).

    "l2": the mean over coordinates of (g(e) − x)²; "cosine": 1 − cos(g(e), x).
    """
    if distance == "l2":
        return (predicted - targets).square().mean()
    # Products are computed before the division: torch.cosine_similarity divides every vector and takes twice as long.
    norms = torch.linalg.vector_norm(predicted, dim=-1) * torch.linalg.vector_norm(targets, dim=-1)
    return (1 - (predicted * targets).sum(-1) / norms.clamp_min(NORM_FLOOR)).mean()


def _glorot(d_in: int, d_out: int, generator: torch.Generator) -> Tensor:
    """Return a transposed Glorot uniform matrix (Glorot & Bengio 2010)."""
    return xavier_uniform_(
        torch.empty(d_out, d_in, dtype=torch.float32), generator=generator
    ).T.contiguous()
