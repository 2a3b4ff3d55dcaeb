"""Corollary 1 as explicit weights: two layers of uniform attention that generate Dyck of any length."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from identilens.lab.dyck.balance import SecondLayer, second_layer
from identilens.lab.dyck.embeddings import symbol_parts, symbols
from identilens.lab.dyck.language import SPECIAL, START, Dyck
from identilens.lab.dyck.modeling import DyckForCausalLM, attention_weights
from identilens.lab.dyck.sufficiency import LayerWeights, balanced_layer, between_steps, paper_model

_DEPTH = 4
"""Coordinates that the first attention writes: two that count the depth, two that count the start token."""


def uniform_transformer(language: Dyck, *, dtype: torch.dtype = torch.float32) -> DyckForCausalLM:
    """Return a 2-layer transformer with uniform attention that generates Dyck_{k,D} of any length (Corollary 1).

    W_Q and W_K are zero in both layers: every token attends uniformly to itself and all earlier tokens. The first layer
    averages +1 for open and −1 for closing brackets. Compared with the start token's share, this average is the depth
    (Eq. 34, C.3); the layer's g turns it into the one-hot embedding of type and depth (Eq. 19). The second layer is the
    balanced layer of Theorem 1. In single precision the depth is exact up to lengths of many thousands.

    Examples:
        >>> import torch
        >>> from identilens.lab.dyck import Dyck, uniform_transformer, with_start
        >>> language = Dyck(types=2, max_depth=3)
        >>> model = uniform_transformer(language)
        >>> logits = model(with_start(torch.tensor([[3, 4]]))).logits[0, -1]
        >>> bool(logits[6] > logits[5])  # the round bracket is closed before the square one
        True
    """
    embeddings, vocabulary = _embeddings(language), language.vocabulary
    count, size = embeddings.shape
    pair = torch.tensor([[1.0, -1.0]], dtype=torch.float64) / 2**0.5
    signs = torch.block_diag(*[pair] * (language.types * language.max_depth))
    directions = pad(signs, (size - signs.shape[1], 0))
    second = balanced_layer(language, embeddings, torch.zeros(count, count).double(), directions)
    value = torch.zeros(size, size, dtype=torch.float64)
    value[vocabulary, SPECIAL : SPECIAL + language.types] = 1.0
    value[vocabulary, language.closing] = -1.0
    value[vocabulary + 2, START] = 1.0
    value[[vocabulary + 1, vocabulary + 3]] = -value[[vocabulary, vocabulary + 2]]
    even = torch.zeros(1, size, dtype=torch.float64)
    first = LayerWeights(even, even, value, _depth_projection(language, embeddings))
    model = paper_model(language, [first, replace(second, q=even, k=even)], 0.0)
    tokens = model.get_parameter("dyck.embeddings.tokens.weight")
    tokens.data = torch.eye(vocabulary, size, dtype=torch.float64)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def uniform_second_layer(language: Dyck, model: DyckForCausalLM) -> SecondLayer:
    """Return the second layer of a model of `uniform_transformer`, for the balance measures."""
    return second_layer(_embeddings(language), *attention_weights(model, 1))


def _embeddings(language: Dyck) -> Float[Tensor, "symbol d"]:
    """Return the second layer's inputs: coordinates of tokens and first attention, one-hot symbols, its directions."""
    own = torch.eye(symbols(language), dtype=torch.float64)
    brackets = language.types * language.max_depth
    return pad(own, (language.vocabulary + _DEPTH, 2 * brackets))


def _depth_projection(language: Dyck, embeddings: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the first layer's g: from token and depth's angle to the one-hot embedding of both.

    After the norm the start token's coordinate is 1/√(2 (d² + 1)), which decreases with the depth d. A step of two
    ReLUs separates the values of adjacent depths. A symbol is active for its token and its depth.
    """
    D, vocabulary, (count, size) = language.max_depth, language.vocabulary, embeddings.shape
    angle: Float[Tensor, " depth"] = (2 * (torch.arange(D + 1).double().square() + 1)).rsqrt()
    middles, halves = (angle[:-1] + angle[1:]) / 2, (angle[:-1] - angle[1:]) / 2
    first = pad(torch.eye(vocabulary, size, dtype=torch.float64)[START:], (0, 0, 2 * D, 0))
    first_bias = torch.zeros(len(first), dtype=torch.float64)
    # A step is 1 at all larger depths.
    first[: 2 * D, vocabulary + 2] = -1 / halves.repeat(2)
    first_bias[: 2 * D] = torch.cat([middles / halves + 0.5, middles / halves - 0.5])
    token, depth = symbol_parts(language)
    second = torch.zeros(count, len(first), dtype=torch.float64)
    second[:, : 2 * D] = between_steps(D + 1)[depth]
    second[torch.arange(count), 2 * D + token - START] = 1.0
    second_bias = torch.where(depth == 0, 0.0, -1.0).double()
    return [
        (first, first_bias),
        (second, second_bias),
        (embeddings.T, torch.zeros(size, dtype=torch.float64)),
    ]
