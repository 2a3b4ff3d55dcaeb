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


def pair_symbols(language: Dyck) -> tuple[Int[Tensor, "kind depth"], Int[Tensor, "kind depth"]]:
    """Return the symbols τ_{2i−1,d} of all open brackets, depth 1 to D, and of their partners.

    A partner τ_{2i,d} leaves depth 0 to D − 1.
    """
    opens, closes = torch.arange(1, symbols(language)).view(2, language.types, language.max_depth)
    return opens, closes


def symbol_parts(language: Dyck) -> tuple[Int[Tensor, " symbol"], Int[Tensor, " symbol"]]:
    """Return token and depth of every symbol."""
    k, D = language.types, language.max_depth
    brackets = torch.arange(SPECIAL, language.vocabulary).repeat_interleave(D)
    depths = torch.cat([torch.arange(1, D + 1).repeat(k), torch.arange(D).repeat(k)])
    return pad(brackets, (1, 0), value=START), pad(depths, (1, 0))


def symbol_ids(
    language: Dyck, tokens: Int[Tensor, "*shape length"]
) -> Int[Tensor, "*shape length"]:
    """Return the symbol τ_{t,d} at each position: token and grammar depth from the beginning, in one number.

    Symbol 0 is the start token, padding or the end. Depths outside the language are clipped to its range.
    """
    opens, closes = language.is_open(tokens), language.is_close(tokens)
    depth = (opens.long() - closes.long()).cumsum(-1)
    level = torch.where(opens, depth - 1, depth).clamp(0, language.max_depth - 1)
    return torch.where(opens | closes, 1 + (tokens - SPECIAL) * language.max_depth + level, 0)


def minimal_embedding(language: Dyck, kind: Minimal) -> Float[Tensor, "symbol d_in"]:
    """Return the embedding e(τ_{t,d}) of every symbol (Wen et al. 2023, Definition 2).

    ``one-hot`` is Eq. 19, o_{t,d}; ``type-depth`` Eq. 20, o_t ⊕ o_d; ``angle`` Eq. 21, o_t ⊕ (cos θ_d, sin θ_d) with
    tan θ_d = d/(D + 2 − d) (Yao et al. 2021). The start token is a separate type at depth 0.
    """
    k, D = language.types, language.max_depth
    if kind == "one-hot":
        return torch.eye(symbols(language))
    token, depth = symbol_parts(language)
    types = one_hot((token - SPECIAL + 1).clamp_min(0), 2 * k + 1).float()
    if kind == "type-depth":
        return torch.cat([types, one_hot(depth, D + 1).float()], 1)
    theta = torch.atan2(depth.double(), (D + 2 - depth).double())
    return torch.cat([types, torch.stack([theta.cos(), theta.sin()], 1).float()], 1)
