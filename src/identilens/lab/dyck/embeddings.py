"""Minimal first layers: embeddings of only a bracket's type and depth (Wen et al. 2023, Eq. 19 to 21)."""

from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot, pad

from identilens.lab.dyck.language import SPECIAL, START, Dyck

Minimal = Literal["one-hot", "type-depth", "angle"]
MINIMAL: tuple[Minimal, ...] = get_args(Minimal)


def symbols(language: Dyck) -> int:
    """Return the number of symbols, pairs of token and depth: 2 k D, plus one for the start token."""
    return 2 * language.types * language.max_depth + 1


def pair_symbols(language: Dyck) -> Int[Tensor, "2 kind depth"]:
    """Return the symbols τ_{2i−1,d} of all open brackets, depth 1 to D, and then those of their partners.

    A partner τ_{2i,d} leaves depth 0 to D − 1.
    """
    return torch.arange(1, symbols(language)).view(2, language.types, language.max_depth)


def symbol_parts(language: Dyck) -> tuple[Int[Tensor, " symbol"], Int[Tensor, " symbol"]]:
    """Return token and depth of every symbol."""
    tokens = torch.arange(SPECIAL, language.vocabulary)
    brackets = tokens.repeat_interleave(language.max_depth)
    depths = torch.arange(language.max_depth).repeat(len(tokens)) + language.is_open(brackets)
    return pad(brackets, (1, 0), value=START), pad(depths, (1, 0))


def symbol_ids(
    language: Dyck, tokens: Int[Tensor, "*shape length"]
) -> Int[Tensor, "*shape length"]:
    """Return the symbol τ_{t,d} at each position: token and grammar depth from the beginning, in one number.

    Symbol 0 is the start token, padding or the end. Depths outside the language are clipped to its range.
    """
    opens, closes = language.is_open(tokens).long(), language.is_close(tokens).long()
    level = ((opens - closes).cumsum(-1) - opens).clamp(0, language.max_depth - 1)
    return (opens + closes) * (1 + (tokens - SPECIAL) * language.max_depth + level)


def minimal_embedding(language: Dyck, kind: Minimal) -> Float[Tensor, "symbol d_in"]:
    """Return the embedding e(τ_{t,d}) of every symbol (Wen et al. 2023, Definition 2).

    ``one-hot`` is Eq. 19, o_{t,d}; ``type-depth`` Eq. 20, o_t ⊕ o_d; ``angle`` Eq. 21, o_t ⊕ (cos θ_d, sin θ_d) with
    tan θ_d = d/(D + 2 − d) (Yao et al. 2021). The start token is a separate type at depth 0.
    """
    if kind == "one-hot":
        return torch.eye(symbols(language))
    token, depth = symbol_parts(language)
    depths = one_hot(depth)
    if kind == "angle":
        theta = torch.atan2(depth.double(), language.max_depth + 2 - depth)
        depths = torch.stack([theta.cos(), theta.sin()], 1)
    return torch.cat([one_hot((token - SPECIAL + 1).relu()), depths], 1).float()
