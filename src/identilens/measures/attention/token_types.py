"""Types of tokens over which attention is averaged (the conventions of Clark et al. 2019)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

PUNCTUATION = ". ,"
"""Name of the type of full stops and commas."""

FIRST = "first token"
"""Name of the type of the first token, for models whose texts have no special tokens."""

OTHER = "other"
"""Name of the type of all other tokens."""

_MARKS = "Ġ▁Ċ# \n"


def type_names(special_tokens: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all types: each special token (or the first token), full stops and commas, other tokens."""
    return (*(dict.fromkeys(special_tokens) or [FIRST]), PUNCTUATION, OTHER)


def token_types(tokens: Sequence[str], names: Sequence[str]) -> Float[Tensor, "token type"]:
    """Return the type of each token as a one-hot row, float64."""
    index = {name: position for position, name in enumerate(names)}
    found = [
        index[token]
        if token in index
        else index[PUNCTUATION if token.strip(_MARKS) in (".", ",") else OTHER]
        for token in tokens
    ]
    if FIRST in index:
        found[:1] = [index[FIRST]]
    return torch.nn.functional.one_hot(torch.tensor(found, dtype=torch.int64), len(names)).double()
