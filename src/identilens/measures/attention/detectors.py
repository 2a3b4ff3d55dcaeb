"""Published patterns of attention: which keys of a row a pattern names."""

from collections.abc import Callable, Sequence
from unicodedata import category

import torch
from jaxtyping import Bool
from torch import Tensor

from identilens.errors import InputError

PATTERNS = {
    "previous": "the previous token",
    "next": "the next token",
    "current": "the token itself",
    "first": "the first token",
    "duplicate": "other places of the same token",
    "induction": "tokens that followed the same token elsewhere",
    "separator": "separators",
    "punctuation": "punctuation",
}
"""Patterns, and the keys that each names.

The first four by position, separators and punctuation as in Clark et al. 2019 (What Does BERT Look At?); duplicate
tokens and induction as in Olsson et al. 2022 (In-context Learning and Induction Heads).
"""

SEPARATORS = frozenset({"[SEP]", "</s>", "<|endoftext|>", "<|im_end|>", "<eos>", "<sep>"})
"""Tokens that count as separators."""


def pattern_keys(
    pattern: str, tokens: Sequence[str], query: int, visible: Bool[Tensor, " key"] | None = None
) -> Bool[Tensor, " key"] | None:
    """Return the keys that a pattern names in one row of self-attention.

    None if the row sees no such key, or nothing else, so that its attention to the pattern is 0 or 1 whatever it is.

    Args:
        pattern: One of `PATTERNS`.
        tokens: What stands at each position.
        query: Position of the row.
        visible: Which keys the row sees; None if it sees every key.

    Raises:
        InputError: For an unknown pattern, or a query that is not there.

    Examples:
        >>> pattern_keys("induction", ["a", "b", "c", "a"], 3).tolist()
        [False, True, False, False]
    """
    if pattern not in PATTERNS or not 0 <= query < len(tokens):
        raise InputError(
            f"expected a query from 0 to {len(tokens) - 1} and one of the patterns {', '.join(PATTERNS)}; got "
            f"{query} and {pattern!r}."
        )
    keys = torch.arange(len(tokens))
    offset = {"previous": -1, "next": 1, "current": 0}
    if pattern in offset:
        named = keys == query + offset[pattern]
    elif pattern == "first":
        named = keys == 0
    elif pattern in ("duplicate", "induction"):
        named = torch.tensor([token == tokens[query] for token in tokens]) & (keys != query)
        if pattern == "induction":
            named = torch.cat([named.new_zeros(1), named[:-1]])
    else:
        named = torch.tensor([_IS[pattern](token) for token in tokens])
    visible = torch.ones_like(named) if visible is None else visible.cpu()
    named = named & visible
    return named if named.any() and (visible & ~named).any() else None


_IS: dict[str, Callable[[str], bool]] = {
    "separator": SEPARATORS.__contains__,
    "punctuation": lambda token: all(category(mark)[0] == "P" for mark in token.strip() or "a"),
}
