"""Transformer layers of Theorem 3: no biases, no scaling, g a chain of linear maps (Wen et al. 2023, 3.2)."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from identilens.lab.drawing import normals, seeded
from identilens.lab.dyck.layer import UnitNorm

_NORM_CONSTANT = 0.1
"""C_LN of Eq. 7, greater than 0 so that the norm is Lipschitz (Lemma 10)."""

PlainLayer = tuple[Tensor, ...]
"""Weights of a layer without biases: W_Q, W_K, W_V, then those of g, linear maps with ReLU between them."""


def run_layers(
    layers: Sequence[PlainLayer], x: Float[Tensor, "batch n d"]
) -> Float[Tensor, "batch n d"]:
    """Return the output of a sequence of layers, g(LN(W_V X σ(C + X^T W_K^T W_Q X)) + X) (Eq. 6); rows are tokens."""
    for layer in layers:
        query, key, value = (x @ weight.T for weight in layer[:3])
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=1.0
        )
        x = UnitNorm(_NORM_CONSTANT)(mixed) + x
        for weight in layer[3:-1]:
            x = (x @ weight.T).relu()
        x = x @ layer[-1].T
    return x


def drawn_layers(
    draw: Callable[[int, int], Tensor], layers: int, key_size: int, sizes: Sequence[int]
) -> list[PlainLayer]:
    """Return layers whose weights are drawn by their numbers of rows and columns; ``sizes`` are those along g."""
    read = (key_size, sizes[0])
    shapes = [read, read, *((rows, columns) for columns, rows in pairwise([sizes[0], *sizes]))]
    return [tuple(draw(*shape) for shape in shapes) for _ in range(layers)]


def small_target(layers: int, size: int, width: int, seed: int) -> list[PlainLayer]:
    """Return a small random transformer with ‖W‖₂ = 1 for each of its weight matrices: Theorem 3's target.

    It has L layers, embeddings, queries and keys of size m, a 2-layer g of width w.
    """
    generator = seeded(seed)

    def draw(rows: int, columns: int) -> Tensor:
        weight = normals(generator, rows, columns)
        return weight / torch.linalg.matrix_norm(weight, 2)

    return drawn_layers(draw, layers, size, (size, width, size))


def without_dead_units(layer: PlainLayer) -> PlainLayer:
    """Return the same function without hidden units and key coordinates that have no input or no output."""
    query, key, value, *weights = layer
    for index in range(len(weights) - 1):
        before, after = weights[index : index + 2]
        alive = before.any(1) & after.any(0)
        weights[index : index + 2] = before[alive], after[:, alive]
    alive = query.any(1) & key.any(1)
    return (query[alive], key[alive], value, *weights)
