"""Uniform attention that generates Dyck of any length, as explicit weights (Wen et al. 2023, Corollary 1)."""

from functools import partial
from itertools import product
from math import log

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.embeddings import pair_symbols, symbol_parts, symbols
from identilens.lab.dyck.language import SPECIAL, START, Dyck
from identilens.lab.dyck.modeling import DyckForCausalLM

_zeros = partial(torch.zeros, dtype=torch.float64)
_eye = partial(torch.eye, dtype=torch.float64)

IMPOSSIBLE = 40.0
"""Logits of impossible tokens are lower by this much: a probability of 4e-18."""

_DEPTH = 4
"""Coordinates that the first attention writes: two that count the depth, two that count the start token."""

Projection = list[tuple[Tensor, Tensor]]
"""Weight and bias of each linear layer of g."""


@torch.no_grad()
def uniform_transformer(language: Dyck) -> DyckForCausalLM:
    """Return a 2-layer transformer with uniform attention that generates Dyck_{k,D} of any length (Corollary 1).

    W_Q and W_K are zero in both layers: every token attends uniformly to itself and all earlier tokens. The first layer
    averages +1 for open and −1 for closing brackets. Compared with the start token's share, this average is the depth
    (Eq. 34, C.3); the layer's g turns it into the one-hot embedding of type and depth (Eq. 19). The second layer is
    that of Theorem 1's proof (C.1): W_V maps each open bracket to a direction of its own, its partner to the opposite
    one, so that matching pairs cancel and only unmatched brackets remain (Eq. 33). The logits are the log-probabilities
    of Definition 1, and −40 for impossible tokens. In single precision the depth is exact up to lengths of many
    thousands.

    Examples:
        >>> import torch
        >>> from identilens.lab.dyck import Dyck, uniform_transformer, with_start
        >>> language = Dyck(types=2, max_depth=3)
        >>> model = uniform_transformer(language)
        >>> logits = model(with_start(torch.tensor([[3, 4]]))).logits[0, -1]
        >>> bool(logits[6] > logits[5])  # the round bracket is closed before the square one
        True
    """
    k, q, vocabulary = language.types, language.open_probability, language.vocabulary
    brackets = k * language.max_depth
    # Coordinates of tokens and first attention, one-hot symbols, and two for the direction of each open bracket.
    embeddings = pad(_eye(symbols(language)), (vocabulary + _DEPTH, 2 * brackets))
    size = embeddings.shape[1]
    pair = torch.tensor([[1.0, -1.0]], dtype=torch.float64) / 2**0.5
    signs = torch.block_diag(*[pair] * brackets)
    directions = pad(signs, (size - signs.shape[1], 0))
    first = _zeros(size, size)
    first[vocabulary, SPECIAL : SPECIAL + k] = 1.0
    first[vocabulary, language.closing] = -1.0
    first[vocabulary + 2, START] = 1.0
    first[[vocabulary + 1, vocabulary + 3]] = -first[[vocabulary, vocabulary + 2]]
    values = torch.zeros_like(embeddings)
    opens, closes = (kind.flatten() for kind in pair_symbols(language))
    values[opens], values[closes] = directions, -directions
    layers = (
        (first, _depth_projection(language, embeddings)),
        (values.T @ embeddings, _reading_projection(language, embeddings, directions)),
    )
    config = DyckConfig(
        bracket_types=k,
        max_depth=language.max_depth,
        open_probability=q,
        hidden_size=size,
        key_size=1,
        block="paper",
        projection_widths=[[len(bias) for _, bias in projection[:-1]] for _, projection in layers],
        projection_residual=False,
        norm_constant=0.0,
    )
    model = DyckForCausalLM(config).double().eval()
    for number, (value, projection) in enumerate(layers):
        layer = model.get_submodule(f"dyck.layers.{number}")
        for part in "qk":
            layer.get_parameter(f"attention.{part}_proj.weight").zero_()
        layer.get_parameter("attention.v_proj.weight").copy_(value)
        for place, (weight, bias) in enumerate(projection):
            layer.get_parameter(f"projection.{2 * place}.weight").copy_(weight)
            layer.get_parameter(f"projection.{2 * place}.bias").copy_(bias)
    model.get_parameter("dyck.embeddings.tokens.weight").copy_(_eye(vocabulary, size))
    head = model.lm_head.weight.zero_()
    head[:, k + 1] = -IMPOSSIBLE
    head[SPECIAL : SPECIAL + k, k + 1] = log(q / k)
    head[SPECIAL : SPECIAL + k, k] = -IMPOSSIBLE
    head[language.closing, :k].fill_diagonal_(IMPOSSIBLE + log(1 - q))
    return model.float()


def _reading_projection(
    language: Dyck, embeddings: Float[Tensor, "symbol d"], directions: Float[Tensor, "bracket d"]
) -> Projection:
    """Return the second layer's g: from LN(output) + e(τ) to the top of the stack, with ReLU between its layers.

    It reads the last token and its depth from the symbols, the stack from the directions, then the top of the stack.
    """
    count, brackets = len(embeddings), len(directions)
    # First: two units per step between the symbols' numbers, and the brackets' directions with either sign.
    number = torch.arange(count).double() @ embeddings
    middles = torch.arange(count - 1).double() + 0.5
    steps = (2 * number).expand(count - 1, -1)
    first = torch.cat([steps, steps, directions, -directions])
    first_bias = torch.cat([0.5 - 2 * middles, -0.5 - 2 * middles, _zeros(2 * brackets)])
    symbol = pad(between_steps(count), (0, 2 * brackets))
    symbol_bias = _eye(count)[0]
    # Second: the symbols, and for each bracket two units of a step at half of its share when unmatched.
    signs = _eye(brackets) * 3 * language.max_depth**0.5
    share = pad(torch.cat([signs, -signs], 1), (2 * (count - 1), 0))
    second = torch.cat([symbol, share, share])
    ones = torch.ones(brackets, dtype=torch.float64)
    second_bias = torch.cat([symbol_bias, -ones, -2 * ones])
    k, D = language.types, language.max_depth
    opens, closes = pair_symbols(language)
    inner = k * (D - 1)
    third = _zeros(inner + k + 1, len(second))
    third_bias = _zeros(len(third))
    third_bias[:inner] = -1.0
    last = _zeros(embeddings.shape[1], len(third))
    for unit, (i, d) in enumerate(product(range(k), range(1, D))):
        # After the symbols there are two units for each bracket: step up and step down.
        step = count + i * D + d - 1
        third[unit, closes[:, d]], third[unit, step], third[unit, step + k * D] = 1.0, 1.0, -1.0
        last[i, unit] = 1.0
    for i in range(k):
        third[inner + i, opens[i]], last[i, inner + i] = 1.0, 1.0
    third[-1, opens[:, -1]], last[k, -1] = 1.0, 1.0
    last_bias = _zeros(len(last))
    last_bias[k + 1] = 1.0
    return [
        (first, first_bias),
        (second, second_bias),
        (third, third_bias),
        (last, last_bias),
    ]


def between_steps(count: int) -> Float[Tensor, "place units"]:
    """Return the weights that distinguish places on a line, with two units per step: up before a place, down after it.

    The first place has no step up and needs a bias of 1 instead; the last place has no step down.
    """
    steps = _eye(count).diff(dim=1)
    return torch.cat([steps, -steps], 1)


def _depth_projection(language: Dyck, embeddings: Float[Tensor, "symbol d"]) -> Projection:
    """Return the first layer's g: from token and depth's angle to the one-hot embedding of both.

    After the norm the start token's coordinate is 1/√(2 (d² + 1)), which decreases with the depth d. A step of two
    ReLUs separates the values of adjacent depths. A symbol is active for its token and its depth.
    """
    D, vocabulary, (count, size) = language.max_depth, language.vocabulary, embeddings.shape
    angle: Float[Tensor, " depth"] = (2 * (torch.arange(D + 1).double().square() + 1)).rsqrt()
    middles, halves = (angle[:-1] + angle[1:]) / 2, (angle[:-1] - angle[1:]) / 2
    first = pad(_eye(vocabulary, size)[START:], (0, 0, 2 * D, 0))
    first_bias = _zeros(len(first))
    # A step is 1 at all larger depths.
    first[: 2 * D, vocabulary + 2] = -1 / halves.repeat(2)
    first_bias[: 2 * D] = torch.cat([middles / halves + 0.5, middles / halves - 0.5])
    token, depth = symbol_parts(language)
    second = _zeros(count, len(first))
    second[:, : 2 * D] = between_steps(D + 1)[depth]
    second[torch.arange(count), 2 * D + token - START] = 1.0
    second_bias = torch.where(depth == 0, 0.0, -1.0).double()
    return [
        (first, first_bias),
        (second, second_bias),
        (embeddings.T, _zeros(size)),
    ]
