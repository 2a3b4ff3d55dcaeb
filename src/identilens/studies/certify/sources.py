"""A logit as the sum of its parts: what rows of attention are sources of."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.stream import attention_row, read_stream, token_of
from identilens.models.token_names import token_names
from identilens.runs.tables import Row

MOST_LIKELY = "most likely"
"""Stands for the token that the model finds most likely."""


@dataclass(frozen=True)
class Source:
    """A direction that the residual stream is read along at one position.

    Attributes:
        name: What is read: a token, or two.
        direction: u, with the scale of the final norm frozen.
        parts: What the logit is the sum of, by layer, the logit itself, and the error of the sum.
    """

    name: str
    direction: Float[Tensor, " d_model"]
    parts: list[Row]


def read_source(lens: Lens, item: Item, query: int, requested: Sequence[str]) -> Source:
    """Return the source of one token's logit, or of the difference of two, at one position.

    Raises:
        InputError: For words that are not one token.
        UnsupportedModelError: If the model's logits are no such sum.
    """
    stream = read_stream(lens, item, query)
    likely = int(stream.logits.argmax())
    tokens = [likely if one == MOST_LIKELY else token_of(lens, one) for one in requested]
    names = token_names(lens.tokenizer, tokens) if lens.tokenizer else map(str, tokens)
    name = " − ".join(map(repr, names))
    directions, rests = zip(*map(stream.direction, tokens), strict=True)
    signs = torch.tensor([1.0, -1.0][: len(tokens)], dtype=torch.float64)
    u = signs @ torch.stack(directions)
    besides = float(signs @ torch.tensor(rests, dtype=torch.float64))
    logit = float(signs @ stream.logits[tokens])
    parts: list[Row] = [
        {"part": "embedding", "layer": None, "value": float(stream.embedding @ u)},
        {"part": "final bias", "layer": None, "value": besides},
    ]
    for layer, forward in zip(stream.layers, stream.feed_forward, strict=True):
        bias = float(layer.site.output_bias.double().cpu() @ u)
        values = {
            "heads": float(attention_row(layer, query) @ u) - bias,
            "output bias": bias,
            "feed-forward": float(forward @ u),
        }
        parts += [
            {"part": part, "layer": layer.site.layer, "value": value}
            for part, value in values.items()
        ]
    error = sum(part["value"] for part in parts) - logit
    parts += [
        {"part": "logit", "layer": None, "value": logit},
        {"part": "error", "layer": None, "value": error},
    ]
    return Source(name, u, parts)
