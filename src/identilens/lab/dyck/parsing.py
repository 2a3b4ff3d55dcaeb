"""Parsing of bracket sequences: depth, partners, top of the stack, and possible next tokens."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.errors import InputError
from identilens.lab.dyck.language import PADDING, SPECIAL, START, Dyck

PAIRS = ("()", "[]", "{}", "<>", "⟨⟩", "⟦⟧", "⟪⟫", "«»")
"""Characters of bracket types; further types are written with numbers."""


@dataclass(frozen=True, eq=False)
class Parse:
    """The parse of every prefix of token sequences. Special tokens are ignored.

    Attributes:
        depth: Grammar depth after each token.
        top_type: Type of the last unmatched open bracket after each token, from 0; -1 if none is open.
        top_place: Position of that bracket in the sequence; -1 if none is open.
        partner: Position of each bracket's partner; -1 if it has none.
        valid: Whether the sequence up to and including each token is a prefix of Dyck_{k,D}.
    """

    depth: Int[Tensor, "count length"]
    top_type: Int[Tensor, "count length"]
    top_place: Int[Tensor, "count length"]
    partner: Int[Tensor, "count length"]
    valid: Bool[Tensor, "count length"]


def parse(language: Dyck, tokens: Int[Tensor, "count length"]) -> Parse:
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
    count, length = tokens.shape
    opens, closes = language.is_open(tokens), language.is_close(tokens)
    kinds = (tokens - SPECIAL) % language.types
    # Level 0 is the empty stack.
    types = torch.full((count, language.max_depth + 1), -1, dtype=torch.long, device=tokens.device)
    places = types.clone()
    depth, alive = torch.zeros_like(types[:, 0]), torch.ones_like(types[:, 0], dtype=torch.bool)
    columns = {
        name: torch.full_like(tokens, -1) for name in ("depth", "top_type", "top_place", "partner")
    }
    valid = torch.empty_like(tokens, dtype=torch.bool)
    rows = torch.arange(count, device=tokens.device)
    for place in range(length):
        opening = opens[:, place] & (depth < language.max_depth) & alive
        closing = closes[:, place] & (depth > 0) & (types[rows, depth] == kinds[:, place]) & alive
        alive = alive & (opening | closing | ~(opens[:, place] | closes[:, place]))
        if bool(closing.any()):
            row, other = rows[closing], places[rows, depth][closing]
            columns["partner"][row, place] = other
            columns["partner"][row, other] = place
        depth = depth + opening.long() - closing.long()
        types[rows[opening], depth[opening]] = kinds[opening, place]
        places[rows[opening], depth[opening]] = place
        columns["depth"][:, place] = depth
        columns["top_type"][:, place] = types[rows, depth]
        columns["top_place"][:, place] = places[rows, depth]
        valid[:, place] = alive
    return Parse(**columns, valid=valid)


def is_valid(
    language: Dyck, tokens: Int[Tensor, "count length"], *, complete: bool = False
) -> Bool[Tensor, " count"]:
    """Return which sequences are prefixes of the language; with ``complete``, which are balanced words."""
    parsed = parse(language, tokens)
    return parsed.valid[:, -1] & (parsed.depth[:, -1] == 0) if complete else parsed.valid[:, -1]


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
    chance = language.open_chances().to(depth.device)[depth]
    law = torch.zeros(*depth.shape, language.vocabulary, dtype=torch.float64, device=depth.device)
    law[..., SPECIAL : SPECIAL + language.types] = (chance / language.types)[..., None]
    place = SPECIAL + language.types + top_type.clamp_min(0)
    law.scatter_(-1, place[..., None], torch.where(depth > 0, 1 - chance, 0.0)[..., None])
    return law


def write_brackets(language: Dyck, tokens: Int[Tensor, " length"]) -> list[str]:
    """Return each token as a character or name."""
    names = token_names(language)
    return [names[token] for token in tokens.tolist()]


def token_names(language: Dyck) -> list[str]:
    """Return the name of each token of the vocabulary."""
    pairs = [
        PAIRS[kind] if kind < len(PAIRS) else (f"({kind + 1}", f"){kind + 1}")
        for kind in range(language.types)
    ]
    return ["<pad>", "<start>", "<end>", *(pair[0] for pair in pairs), *(pair[1] for pair in pairs)]


def probe_prefix(language: Dyck) -> Int[Tensor, " length"]:
    """Return the prefix with brackets of all types at all depths, such as "(((())))[[[[]]]]": 2 k D brackets.

    Attention of different seeds is compared on it.
    """
    pairs = torch.arange(SPECIAL, language.vocabulary).view(2, language.types).T
    return pairs.repeat_interleave(language.max_depth, 1).flatten()


def check_tokens(language: Dyck, tokens: Int[Tensor, "count length"]) -> None:
    """Raise InputError unless every sequence, without start tokens and padding, is a prefix of the language."""
    if len(bad := (~is_valid(language, tokens)).nonzero()):
        row = int(bad[0])
        shown = "".join(
            write_brackets(language, tokens[row][(tokens[row] != PADDING) & (tokens[row] != START)])
        )
        raise InputError(
            f"expected prefixes of Dyck with {language.types} types and depth up to {language.max_depth}; sequence "
            f"{row} is not one: {shown:.80}. Sample them from the language, or raise its depth"
        )
