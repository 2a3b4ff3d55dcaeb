"""The sufficiency part of Theorem 1 as explicit weights: a balanced second layer that generates Dyck of any length."""

from collections.abc import Sequence
from functools import partial
from math import log
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot, pad

from identilens.errors import InputError
from identilens.lab.drawing import uniforms
from identilens.lab.dyck.balance import condition_gap
from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.embeddings import pair_symbols, symbol_parts, symbols
from identilens.lab.dyck.language import SPECIAL, START, Dyck
from identilens.lab.dyck.modeling import DyckForCausalLM

_zeros = partial(torch.zeros, dtype=torch.float64)
_eye = partial(torch.eye, dtype=torch.float64)

IMPOSSIBLE = 40.0
"""Logits of impossible tokens are lower by this much: a probability of 4e-18."""

_BALANCED = 1e-8

_ROUNDING = 1e-10
"""C_LN. With 0, as in the theorem, the norm would scale rounding errors to length one where all brackets match."""


PaperLayer = list[Tensor]
"""W_Q, W_K and W_V of the paper's block (Eq. 6), then weight and bias of each linear layer of g."""


@torch.no_grad()
def paper_model(language: Dyck, layers: Sequence[PaperLayer], **options: Any) -> DyckForCausalLM:
    """Return the model in float64 with layers of the paper's block and the given weights.

    The last layer gives the log-probabilities of Definition 1, and −40 for impossible tokens. ``options`` are those of
    `DyckConfig`.
    """
    config = DyckConfig(
        bracket_types=language.types,
        max_depth=language.max_depth,
        open_probability=language.open_probability,
        hidden_size=len(layers[0][0]),
        num_hidden_layers=len(layers),
        block="paper",
        projection_widths=[[len(bias) for bias in layer[4:-1:2]] for layer in layers],
        projection_residual=False,
        **options,
    )
    model = DyckForCausalLM(config).double().eval()
    # Off balance, logits of closing brackets may be equal but for rounding, which is that of the formula.
    model.set_attn_implementation("eager")
    for layer, weights in zip(model.dyck.layers, layers, strict=True):
        trained = (parameter for parameter in layer.parameters() if parameter.requires_grad)
        for parameter, weight in zip(trained, weights, strict=True):
            parameter.copy_(weight)
    k, q, head = language.types, language.open_probability, model.lm_head.weight.zero_()
    head[:, k + 1] = -IMPOSSIBLE
    head[SPECIAL : SPECIAL + k, k + 1] = log(q / k)
    head[SPECIAL : SPECIAL + k, k] = -IMPOSSIBLE
    head[language.closing, :k].fill_diagonal_(IMPOSSIBLE + log(1 - q))
    return model


def balanced_scores(
    language: Dyck, spread: float, generator: torch.Generator
) -> Float[Tensor, "query key"]:
    """Return random attention logits that satisfy the balance condition (Eq. 11), [query symbol, key symbol].

    Logits are uniform in ±spread, except those of closing keys for closing queries. These are the logits of their
    partners plus a shift that is drawn once for each matching pair.

    Examples:
        >>> import torch
        >>> from identilens.lab.dyck import Dyck, balanced_scores
        >>> balanced_scores(Dyck(types=2, max_depth=2), 1.0, torch.Generator().manual_seed(0)).shape
        torch.Size([9, 9])
    """
    size = symbols(language)
    opens, closes = pair_symbols(language).flatten(1)
    scores = (2 * uniforms(generator, size, size) - 1) * spread
    shifts = (2 * uniforms(generator, len(opens)) - 1) * spread
    scores[closes[:, None], closes] = scores[closes[:, None], opens] + shifts
    return scores


def sufficient_model(
    language: Dyck,
    embeddings: Float[Tensor, "symbol d"],
    scores: Float[Tensor, "query key"],
) -> DyckForCausalLM:
    """Return the transformer that Theorem 1 constructs after a minimal first layer with the given embeddings.

    It predicts the distribution of the next token for every prefix of every length, for all attention logits that
    satisfy the balance condition (Eq. 11). In float64. Hidden states have 2 k D further coordinates, 0 in the
    embeddings, for the directions that represent brackets.

    Examples:
        >>> import torch
        >>> from identilens.lab.dyck import Dyck, balanced_scores, sufficient_model
        >>> language, generator = Dyck(types=2, max_depth=2), torch.Generator().manual_seed(0)
        >>> scores = balanced_scores(language, 1.0, generator)
        >>> model = sufficient_model(language, torch.eye(len(scores)), scores)
        >>> model.config.num_hidden_layers
        1

    Raises:
        InputError: For dependent embeddings, or logits off balance.
    """
    gap = condition_gap(language, scores)
    if gap > _BALANCED * max(1.0, float(scores.abs().max())):
        raise InputError(
            f"expected attention logits that satisfy the balance condition (Eq. 11); a matching pair's difference "
            f"changes by up to {gap:.3g} between closing brackets. Use those of balanced_scores"
        )
    padded = pad(embeddings.double(), (0, symbols(language) - 1))
    layer = balanced_layer(language, padded, scores)
    model = paper_model(language, [layer], norm_constant=_ROUNDING, first_layer="given")
    model.get_buffer("dyck.embeddings.symbol_table").copy_(padded)
    return model


def balanced_layer(
    language: Dyck,
    embeddings: Float[Tensor, "symbol d"],
    scores: Float[Tensor, "query key"],
) -> PaperLayer:
    """Return the second layer of Theorem 1's proof (C.1).

    W_V maps the open bracket (i, d) to its direction o_{i,d}, and its partner to −exp(c_{i,d}) o_{i,d}, with c the
    difference of their logits (Eq. 27, 28). Matching pairs cancel, and only directions of unmatched brackets remain
    (Eq. 33). g reads the last token and its depth from X, then the stack from the rest, then the top of the stack at
    that depth. The directions, by type and depth, are orthonormal and orthogonal to the ones (Lemma 16), in the last
    2 k D coordinates, where embeddings are 0.

    Raises:
        InputError: If the embeddings are linearly dependent.
    """
    count, size = embeddings.shape
    pair = torch.tensor([[1.0, -1.0]]).double() / 2**0.5
    signs = torch.kron(_eye(language.types * language.max_depth), pair)
    directions = pad(signs, (size - signs.shape[1], 0))
    rank = int(torch.linalg.matrix_rank(embeddings))
    if rank < count:
        raise InputError(
            f"expected {count} linearly independent embeddings, one per symbol, got rank {rank}; add dimensions"
        )
    inverse = torch.linalg.pinv(embeddings)
    opens, closes = pair_symbols(language).flatten(1)
    # Of a closing bracket at depth 1 or more, if there is any.
    row = scores[closes[:2][-1]]
    partners = -(row[opens] - row[closes]).exp()[:, None] * directions
    values = torch.cat([_zeros(1, size), directions, partners])
    # The least coordinate of an unmatched bracket's direction after the LayerNorm.
    logits = scores[closes[:, None], opens]
    least = (logits.amin(1) - logits.amax(1)).exp().min() / language.max_depth**0.5
    key = size**0.5 * inverse @ scores @ inverse.T
    projection = _reading_projection(language, inverse.T, directions * 3 / least)
    return [_eye(size), key, (inverse @ values).T, *projection]


def _reading_projection(
    language: Dyck, symbol: Float[Tensor, "symbol d"], share: Float[Tensor, "bracket d"]
) -> list[Tensor]:
    """Return g: from LN(output) + e(τ) to the top of the stack, in three linear layers with ReLU between them.

    ``symbol`` maps to the one-hot symbol, ``share`` to each bracket's share, at least 3 where it is unmatched.
    The output is the one-hot type of the top, whether the stack is full, and 1.
    """
    count, brackets = len(symbol), len(share)
    # First: the symbols, and for each bracket two units of a step at half of its least share when unmatched.
    first = torch.cat([symbol, share, share])
    first_bias = -torch.tensor([0] * count + [1] * brackets + [2] * brackets)
    # Second: for each bracket, whether it is unmatched and the last token closes down to it; then the open tokens.
    k, D = language.types, language.max_depth
    token, depth = symbol_parts(language)
    down = language.is_close(token) & (depth == depth[1 : brackets + 1, None])
    opened = token == torch.arange(SPECIAL, SPECIAL + k)[:, None]
    second = pad(torch.cat([down, opened, depth[None] == D]).double(), (0, 2 * brackets))
    second[:brackets, count:] = torch.cat([_eye(brackets), -_eye(brackets)], 1)
    second_bias = pad(-torch.ones(brackets), (0, k + 1))
    last, last_bias = _zeros(symbol.shape[1], len(second)), _zeros(symbol.shape[1])
    last[:k, :-1] = torch.cat([_eye(k).repeat_interleave(D, 1), _eye(k)], 1)
    last[k, -1] = last_bias[k + 1] = 1.0
    return [first, first_bias, second, second_bias, last, last_bias]


def uniform_transformer(language: Dyck) -> DyckForCausalLM:
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
    embeddings, vocabulary = uniform_embeddings(language), language.vocabulary
    count, size = embeddings.shape
    zero, value = _zeros(2, size, size)
    value[vocabulary, SPECIAL : SPECIAL + language.types] = 1.0
    value[vocabulary, language.closing] = -1.0
    value[vocabulary + 1, START] = 1.0
    # Two further coordinates, so that the mean is 0.
    value -= value.roll(2, 0)
    first = [zero, zero, value, *_depth_projection(language, embeddings)]
    second = [zero, zero, *balanced_layer(language, embeddings, _zeros(count, count))[2:]]
    model = paper_model(language, [first, second], norm_constant=0.0)
    model.get_parameter("dyck.embeddings.tokens.weight").data = _eye(vocabulary, size)
    return model.float()


def uniform_embeddings(language: Dyck) -> Float[Tensor, "symbol d"]:
    """Return its second layer's inputs: coordinates of tokens and first attention, one-hot symbols, its directions.

    The first attention writes the depth, the share of the start token, then both with the other sign.
    """
    count = symbols(language)
    return pad(_eye(count), (language.vocabulary + 4, count - 1))


def _depth_projection(language: Dyck, embeddings: Tensor) -> list[Tensor]:
    """Return the first layer's g: from token and depth's angle to the one-hot embedding of both.

    After the norm the start token's coordinate is 1/√(2 (d² + 1)), which decreases with the depth d. A step of two
    ReLUs separates the values of adjacent depths. A symbol is active for its token and its depth.
    """
    D, vocabulary, size = language.max_depth, language.vocabulary, embeddings.shape[1]
    angle = (2 * (torch.arange(D + 1).double().square() + 1)).rsqrt()
    centres = (angle[:-1] + angle[1:]) / -angle.diff()
    first = torch.cat([_zeros(2 * D, size), _eye(vocabulary, size)])
    # A step is 1 at all larger depths.
    first[: 2 * D, vocabulary + 1] = (2 / angle.diff()).repeat(2)
    first_bias = torch.cat([centres + 0.5, centres - 0.5, _zeros(vocabulary)])
    token, depth = symbol_parts(language)
    # Two units per step distinguish numbers on a line: up before a number, down after it.
    steps = _eye(D + 1).diff(dim=1)[depth]
    second = torch.cat([steps, -steps, one_hot(token, vocabulary)], 1)
    second_bias = -depth.sign()
    return [first, first_bias, second, second_bias, embeddings.T, _zeros(size)]
