"""Parsing of bracket sequences: depth, top of the stack, and possible next tokens."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from identilens.lab.dyck.language import SPECIAL, Dyck, Tokens

OPEN, CLOSE = "([{<⟨⟦⟪«", ")]}>⟩⟧⟫»"
"""Characters of the brackets of each type."""


class Parse(NamedTuple):
    """The parse of every prefix of token sequences. Special tokens are ignored.

    Attributes:
        depth: Grammar depth after each token.
        top_type: Type of the last unmatched open bracket after each token, from 0; -1 if none is open.
        top_place: Position of that bracket in the sequence; -1 if none is open.
    """

    depth: Tokens
    top_type: Tokens
    top_place: Tokens


def parse(language: Dyck, tokens: Tokens) -> Parse:
    """Return the parse of every prefix of every sequence.

    Sequences can have special tokens. If a sequence leaves the language, its parse has no meaning from there on.

    Examples:
        >>> import torch
        >>> from identilens.lab.dyck import Dyck, parse
        >>> words = torch.tensor([[3, 4, 6, 5]])  # [ ( ) ]
        >>> result = parse(Dyck(types=2, max_depth=3), words)
        >>> result.depth, result.top_type
        (tensor([[1, 2, 1, 0]]), tensor([[ 0,  1,  0, -1]]))
    """
    opens, closes = language.is_open(tokens), language.is_close(tokens)
    kinds = (tokens - SPECIAL) % language.types
    depth = (opens.long() - closes.long()).cumsum(1)
    # The top of the stack is the last bracket that was opened to its depth.
    levels = torch.arange(language.max_depth + 1, device=tokens.device)[:, None, None]
    opened = torch.where(
        opens & (depth == levels), torch.arange(tokens.shape[1], device=tokens.device), -1
    ).cummax(-1)
    top = opened.values.gather(0, depth.clamp(0, language.max_depth)[None])[0]
    return Parse(depth, torch.where(top < 0, -1, kinds.gather(1, top.clamp_min(0))), top)


def next_token_distribution(
    language: Dyck, depth: Int[Tensor, "*shape"], top_type: Int[Tensor, "*shape"]
) -> Float[Tensor, "*shape token"]:
    """Return the distribution of the next token (Wen et al. 2023, Eq. 3), from the parse of a prefix.

    All open brackets have the same probability. The only possible closing bracket is that of the top of the stack.

    Examples:
        >>> import torch
        >>> from identilens.lab.dyck import Dyck, next_token_distribution
        >>> language = Dyck(types=2, max_depth=3)
        >>> next_token_distribution(language, torch.tensor(1), torch.tensor(0))
        tensor([0.0000, 0.0000, 0.0000, 0.2500, 0.2500, 0.5000, 0.0000],
               dtype=torch.float64)
    """
    chance = language.open_chances().to(depth.device)[depth, None]
    top = functional.one_hot(top_type.clamp_min(0), language.types)
    opens = chance / language.types * torch.ones_like(top)
    return functional.pad(torch.cat([opens, (1 - chance) * top], -1), (SPECIAL, 0))


def token_names(language: Dyck) -> list[str]:
    """Return the name of each token of the vocabulary."""
    return ["<pad>", "<start>", "<end>", *OPEN[: language.types], *CLOSE[: language.types]]


def probe_prefix(language: Dyck) -> Int[Tensor, " length"]:
    """Return the prefix with brackets of all types at all depths, such as "(((())))[[[[]]]]": 2 k D brackets.

    Attention of different seeds is compared on it.
    """
    return (
        torch.arange(SPECIAL, language.vocabulary)
        .view(2, -1)
        .T.repeat_interleave(language.max_depth, 1)
        .flatten()
    )
