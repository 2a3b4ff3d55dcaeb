"""Corollary 1 as explicit weights: two layers of uniform attention that generate Dyck of any length."""

from dataclasses import replace
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.dyck.balance import SecondLayer, second_layer
from identilens.dyck.configuration import DyckConfig
from identilens.dyck.embeddings import close_symbol, open_symbol, symbols
from identilens.dyck.language import START, Dyck
from identilens.dyck.modeling import DyckForCausalLM, attention_weights
from identilens.dyck.sufficiency import LayerWeights, balanced_layer

_DEPTH = 4
"""Coordinates that the first attention writes: two that count the depth, two that count the start token."""


def uniform_transformer(language: Dyck, *, dtype: torch.dtype = torch.float32) -> DyckForCausalLM:
    """Return a 2-layer transformer with uniform attention that generates Dyck_{k,D} of any length (Corollary 1).

    W_Q and W_K are zero in both layers: every token attends evenly to itself and all before it, whatever they are. The
    first layer's average of +1 for open and −1 for closing brackets, against the start token's share, is the depth
    (Eq. 34, C.3), and its g makes the one-hot embedding of type and depth of it (Eq. 19). The second is the balanced
    layer of Theorem 1. In single precision depth is read exactly up to lengths of many thousands.

    Args:
        language: Dyck_{k,D}.
        dtype: Precision of the weights, float32 or float64.
    """
    count, brackets = symbols(language), language.types * language.max_depth
    size = language.vocabulary + _DEPTH + count + 2 * brackets
    embeddings = torch.zeros(count, size, dtype=torch.float64)
    block = language.vocabulary + _DEPTH
    embeddings[:, block : block + count] = torch.eye(count, dtype=torch.float64)
    directions = torch.zeros(brackets, size, dtype=torch.float64)
    for bracket in range(brackets):
        place = block + count + 2 * bracket
        directions[bracket, place : place + 2] = torch.tensor([1.0, -1.0]).double() / 2**0.5
    second = balanced_layer(language, embeddings, torch.zeros(count, count).double(), directions)
    first = _depth_projection(language, size)
    config = DyckConfig(
        bracket_types=language.types,
        max_depth=language.max_depth,
        open_probability=language.open_probability,
        hidden_size=size,
        key_size=1,
        num_hidden_layers=2,
        block="paper",
        projection_widths=[[len(bias) for _, bias in first[:-1]], second.widths],
        projection_residual=False,
        norm_constant=0.0,
    )
    model = DyckForCausalLM(config).double().eval()
    value = torch.zeros(size, size, dtype=torch.float64)
    for kind, sign in product(range(language.types), (1.0, -1.0)):
        token = language.open(kind) if sign > 0 else language.close(kind)
        value[language.vocabulary, token], value[language.vocabulary + 1, token] = sign, -sign
    value[language.vocabulary + 2, START], value[language.vocabulary + 3, START] = 1.0, -1.0
    even = torch.zeros(1, size, dtype=torch.float64)
    LayerWeights(even, even, value, first).put_into(model, 0)
    replace(second, q=even, k=even).put_into(model, 1)
    with torch.no_grad():
        tokens = torch.eye(size, dtype=torch.float64)[: language.vocabulary]
        model.get_parameter("dyck.embeddings.tokens.weight").copy_(tokens)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
    return model


def uniform_second_layer(language: Dyck, model: DyckForCausalLM) -> SecondLayer:
    """Return the second layer of a model of `uniform_transformer`, for the balance measures."""
    size: int = model.config.hidden_size
    count = symbols(language)
    embeddings = torch.zeros(count, size, dtype=torch.float64)
    block = language.vocabulary + _DEPTH
    embeddings[:, block : block + count] = torch.eye(count, dtype=torch.float64)
    return second_layer(embeddings, *attention_weights(model, 1))


def _depth_projection(language: Dyck, size: int) -> list[tuple[Tensor, Tensor]]:
    """Return the first layer's g: from token and depth's angle to the one-hot embedding of both.

    Behind the norm the start token's coordinate is 1/√(2 (d² + 1)), which falls with the depth d. Between the values of
    neighbouring depths stands a step of two ReLUs; a symbol is token and depth both.
    """
    D, count = language.max_depth, symbols(language)
    angle: Float[Tensor, " depth"] = (2 * (torch.arange(D + 1).double().square() + 1)).rsqrt()
    middles, halves = (angle[:-1] + angle[1:]) / 2, (angle[:-1] - angle[1:]) / 2
    tokens = range(START, language.vocabulary)
    first = torch.zeros(2 * D + len(tokens), size, dtype=torch.float64)
    first_bias = torch.zeros(len(first), dtype=torch.float64)
    # A step is 1 at depths deeper than its own.
    first[: 2 * D, language.vocabulary + 2] = -1 / halves.repeat(2)
    first_bias[:D], first_bias[D : 2 * D] = middles / halves + 0.5, middles / halves - 0.5
    for unit, token in enumerate(tokens):
        first[2 * D + unit, token] = 1.0
    second = torch.zeros(count, len(first), dtype=torch.float64)
    second_bias = torch.full((count,), -1.0, dtype=torch.float64)

    def both(symbol: int, token: int, depth: int) -> None:
        second[symbol, 2 * D + token - START] = 1.0
        for step, sign in ((depth - 1, 1.0), (depth, -1.0)):
            if 0 <= step < D:
                second[symbol, step] += sign
                second[symbol, D + step] -= sign
        second_bias[symbol] += 1.0 if depth == 0 else 0.0

    both(0, START, 0)
    for kind, depth in product(range(language.types), range(1, D + 1)):
        both(open_symbol(language, kind, depth), language.open(kind), depth)
        both(close_symbol(language, kind, depth - 1), language.close(kind), depth - 1)
    last = torch.zeros(size, count, dtype=torch.float64)
    block = language.vocabulary + _DEPTH
    last[block : block + count] = torch.eye(count, dtype=torch.float64)
    return [(first, first_bias), (second, second_bias), (last, torch.zeros(size, dtype=torch.float64))]
