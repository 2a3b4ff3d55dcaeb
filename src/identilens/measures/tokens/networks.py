"""Stacks of linear and MLP probes: parameters, predictions and gradients of many members at once.

A stack holds the parameters of m members as tensors with a leading axis of length m, each divided by
its member's learning rate. Adam's step is the rate times a vector that depends on gradients alone, so
the divided parameters follow Adam at rate 1 and one fused step serves members of different rates.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.measures.tokens.lookup import Distance

Features = Float[Tensor, "member row d_in"]
Predicted = Float[Tensor, "member row d_out"]
Rates = Float[Tensor, " member"]


@dataclass(frozen=True)
class LinearNetwork:
    """g(e) = W e, no bias (Brunner et al. 2020, 4.2)."""

    def initial(self, d_in: int, d_out: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Return W (d_out x d_in), Glorot uniform."""
        return (_glorot(d_out, d_in, generator),)

    def forward(self, scaled: tuple[Tensor, ...], rates: Rates, features: Features) -> tuple[Predicted, tuple]:
        """Return e Wᵀ for every member."""
        return torch.bmm(features, scaled[0].mT).mul_(rates[:, None, None]), ()

    def backward(
        self, scaled: tuple[Tensor, ...], rates: Rates, features: Features, saved: tuple, error: Predicted
    ) -> tuple[Tensor, ...]:
        """Return the gradient by W."""
        return (torch.bmm(error.mT, features),)

    def apply(self, parameters: tuple[Tensor, ...], features: Float[Tensor, "row d_in"]) -> Float[Tensor, "row d_out"]:
        """Return e Wᵀ."""
        return features @ parameters[0].T


@dataclass(frozen=True)
class MlpNetwork:
    """g(e) = W₂ gelu(W₁ e + b₁) + b₂ with one hidden layer (Brunner et al. 2020, B.1).

    Attributes:
        hidden_units: Width of the hidden layer, 1000 in the paper.
    """

    hidden_units: int

    def initial(self, d_in: int, d_out: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Return W₁, b₁, W₂, b₂: Glorot uniform weights, biases zero."""
        first = _glorot(self.hidden_units, d_in, generator)
        second = _glorot(d_out, self.hidden_units, generator)
        return first, torch.zeros(self.hidden_units), second, torch.zeros(d_out)

    def forward(self, scaled: tuple[Tensor, ...], rates: Rates, features: Features) -> tuple[Predicted, tuple]:
        """Return the predictions, and the hidden layer before and after its activation."""
        first, first_bias, second, second_bias = scaled
        factor = rates[:, None, None]
        before = torch.baddbmm(first_bias[:, None], features, first.mT).mul_(factor)
        after = torch.nn.functional.gelu(before)
        return torch.baddbmm(second_bias[:, None], after, second.mT).mul_(factor), (before, after)

    def backward(
        self, scaled: tuple[Tensor, ...], rates: Rates, features: Features, saved: tuple, error: Predicted
    ) -> tuple[Tensor, ...]:
        """Return the gradients by W₁, b₁, W₂, b₂."""
        before, after = saved
        by_after = torch.bmm(error, scaled[2]).mul_(rates[:, None, None])
        by_before = torch.ops.aten.gelu_backward(by_after, before)
        return torch.bmm(by_before.mT, features), by_before.sum(1), torch.bmm(error.mT, after), error.sum(1)

    def apply(self, parameters: tuple[Tensor, ...], features: Float[Tensor, "row d_in"]) -> Float[Tensor, "row d_out"]:
        """Return W₂ gelu(W₁ e + b₁) + b₂."""
        first, first_bias, second, second_bias = parameters
        hidden = torch.nn.functional.gelu(torch.nn.functional.linear(features, first, first_bias))
        return torch.nn.functional.linear(hidden, second, second_bias)


Network = LinearNetwork | MlpNetwork


def weighted_loss(
    predicted: Predicted,
    wanted: Float[Tensor, "member row d_out"],
    weight: Float[Tensor, "member row"],
    distance: Distance,
) -> Float[Tensor, " member"]:
    """Return each member's loss, the weighted sum over rows of the distance to the wanted inputs.

    "l2": the mean over coordinates of (g(e) − x)²; "cosine": 1 − cos(g(e), x). Brunner et al. 2020, 4.1.

    Args:
        predicted: g(e).
        wanted: x.
        weight: 1 / rows for a mean over rows; 0 leaves a row out.
        distance: "cosine" or "l2".
    """
    if distance == "l2":
        each = (predicted - wanted).square().mean(-1)
    else:
        norms = _norm(predicted) * _norm(wanted)
        each = 1 - (predicted * wanted).sum(-1, keepdim=True).div(norms).squeeze(-1)
    return (each * weight).sum(-1)


def loss_gradient_(
    predicted: Predicted,
    wanted: Float[Tensor, "member row d_out"],
    weight: Float[Tensor, "member row"],
    distance: Distance,
) -> Predicted:
    """Return the gradient of ``weighted_loss`` by the predictions, written over them.

    Args:
        predicted: g(e); overwritten.
        wanted: x.
        weight: As for ``weighted_loss``.
        distance: "cosine" or "l2".
    """
    if distance == "l2":
        return predicted.sub_(wanted).mul_(weight[..., None] * (2 / predicted.shape[-1]))
    # By g: −(x/‖x‖ − cos · g/‖g‖) / ‖g‖.
    norm = _norm(predicted)
    scale = weight[..., None] / (norm * _norm(wanted))
    along = (predicted * wanted).sum(-1, keepdim=True) / norm.square()
    return predicted.mul_(along * scale).addcmul_(wanted, scale, value=-1)


def _norm(vectors: Tensor) -> Tensor:
    """Return the length of each row; the floor keeps a zero vector from dividing by zero."""
    return torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_min(1e-12)


def _glorot(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Return a Glorot uniform matrix (Glorot & Bengio 2010)."""
    return torch.nn.init.xavier_uniform_(torch.empty(rows, columns), generator=generator)
