"""The logit to which rows of attention add: a direction of the residual stream."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.stream import read_stream, token_of
from identilens.models.token_names import token_names

MOST_LIKELY = "most likely"
"""Stands for the token that the model finds most likely."""


def read_source(
    lens: Lens, item: Item, query: int, requested: Sequence[str]
) -> tuple[Float[Tensor, " d_model"], str]:
    """Return the direction along which one token's logit, or the difference of two, is read at one position.

    With the scale of the final norm frozen; and its name: the token, or two.

    Raises:
        InputError: For words that are not one token.
        UnsupportedModelError: If the model's logits are no such sum.
    """
    stream = read_stream(lens, item, query)
    likely = int(stream.logits.argmax())
    tokens = [likely if one == MOST_LIKELY else token_of(lens, one) for one in requested]
    names = token_names(lens.tokenizer, tokens) if lens.tokenizer else map(str, tokens)
    name = " − ".join(map(repr, names))
    directions = [stream.direction(one)[0] for one in tokens]
    signs = torch.tensor([1.0, -1.0][: len(tokens)], dtype=torch.float64)
    return signs @ torch.stack(directions), name
