"""Which tokens count as which type when attention is averaged (the conventions of Clark et al. 2019)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

PUNCTUATION = ". ,"
"""Name of the type that holds full stops and commas."""

FIRST = "first token"
"""Name of the type that holds what stands first, where a model's texts have no special tokens."""

OTHER = "other"
"""Name of the type that holds every token without a type of its own."""

_MARKS = "Ġ▁Ċ# "


def type_names(special_tokens: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all types: each special token (or the first token), full stops and commas, the rest."""
    return (*(dict.fromkeys(special_tokens) or [FIRST]), PUNCTUATION, OTHER)


def token_types(tokens: Sequence[str], names: Sequence[str]) -> Float[Tensor, "token type"]:
    """Return which type each token has: a row of zeros with a one, float64."""
    index = {name: position for position, name in enumerate(names)}
    found = [
        index[token] if token in index else index[PUNCTUATION if token.strip(_MARKS) in (".", ",") else OTHER]
        for token in tokens
    ]
    if FIRST in index:
        found[:1] = [index[FIRST]]
    return torch.nn.functional.one_hot(torch.tensor(found, dtype=torch.int64), len(names)).double()
