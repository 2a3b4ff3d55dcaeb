"""Transformer layers of Theorem 3: no biases, no scaling, g a chain of linear maps (Wen et al. 2023, 3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from identilens.lab.dyck.layer import UnitNorm

_NORM_CONSTANT = 0.1
"""C_LN of Eq. 7, greater than 0 so that the norm is Lipschitz (Lemma 10)."""


@dataclass(frozen=True, eq=False)
class PlainLayer:
    """A layer without biases: g(LN(W_V X σ(C + X^T W_K^T W_Q X)) + X), g linear maps with ReLU between (Eq. 6).

    Attributes:
        query: W_Q.
        key: W_K.
        value: W_V.
        projection: Weights of g.
    """

    query: Float[Tensor, "d_k d"]
    key: Float[Tensor, "d_k d"]
    value: Float[Tensor, "d d"]
    projection: tuple[Tensor, ...]

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        """Every weight matrix."""
        return (self.query, self.key, self.value, *self.projection)

    def run(self, x: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch n d"]:
        """Return the layer's output; rows are tokens."""
        query, key, value = (x @ weight.T for weight in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=1.0
        )
        y = UnitNorm(_NORM_CONSTANT)(mixed) + x
        for place, weight in enumerate(self.projection):
            y = (torch.relu(y) if place else y) @ weight.T
        return y


def run_layers(
    layers: Sequence[PlainLayer], x: Float[Tensor, "batch n d"]
) -> Float[Tensor, "batch n d"]:
    """Return the output of a sequence of layers."""
    for layer in layers:
        x = layer.run(x)
    return x


def small_target(layers: int, size: int, width: int, seed: int) -> list[PlainLayer]:
    """Return a small random transformer with ‖W‖₂ = 1 for each of its weight matrices: Theorem 3's target.

    It has L layers, embeddings, queries and keys of size m, a 2-layer g of width w.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(rows: int, columns: int) -> Tensor:
        weight = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
        return weight / torch.linalg.matrix_norm(weight, 2)

    return [
        PlainLayer(
            drawn(size, size),
            drawn(size, size),
            drawn(size, size),
            (drawn(width, size), drawn(size, width)),
        )
        for _ in range(layers)
    ]


def without_dead_units(layer: PlainLayer) -> PlainLayer:
    """Return the same function without hidden units and key coordinates that have no input or no output."""
    weights = list(layer.projection)
    for place in range(len(weights) - 1):
        alive = weights[place].any(1) & weights[place + 1].any(0)
        weights[place : place + 2] = weights[place][alive], weights[place + 1][:, alive]
    alive = layer.query.any(1) & layer.key.any(1)
    return replace(layer, query=layer.query[alive], key=layer.key[alive], projection=tuple(weights))
