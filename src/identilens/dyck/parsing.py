"""What a push-down automaton knows of bracket sequences: depth, partners, the stack's top, what may come next."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.dyck.language import PADDING, SPECIAL, START, Dyck
from identilens.errors import InputError

PAIRS = ("()", "[]", "{}", "<>", "⟨⟩", "⟦⟧", "⟪⟫", "«»")
"""How brackets are written; more types than these have numbers."""


@dataclass(frozen=True, eq=False)
class Parse:
    """Every prefix of some token sequences, parsed. Special tokens change nothing.

    Attributes:
        depth: Grammar depth after each token.
        top_type: Type of the last unmatched open bracket after each token, from 0; -1 where none is open.
        top_place: Its place in the sequence; -1 where none is open.
        partner: Place of each bracket's partner; -1 where it has none.
        valid: Whether everything up to and with each token is a prefix of Dyck_{k,D}.
    """

    depth: Int[Tensor, "count length"]
    top_type: Int[Tensor, "count length"]
    top_place: Int[Tensor, "count length"]
    partner: Int[Tensor, "count length"]
    valid: Bool[Tensor, "count length"]


def parse(language: Dyck, tokens: Int[Tensor, "count length"]) -> Parse:
    """Return the parse of every prefix of every sequence.

    A sequence, with or without special tokens, that leaves the language is followed as far as it was valid; what is
    said of it later means nothing.

    Examples:
        >>> import torch
        >>> from identilens.dyck import Dyck, parse
        >>> words = torch.tensor([[3, 4, 6, 5]])  # [ ( ) ]
        >>> found = parse(Dyck(types=2, max_depth=3), words)
        >>> found.depth, found.top_type
        (tensor([[1, 2, 1, 0]]), tensor([[ 0,  1,  0, -1]]))
    """
    count, length = tokens.shape
    opens, closes = language.is_open(tokens), language.is_close(tokens)
    kinds = (tokens - SPECIAL) % language.types
    # Level 0 stands for the empty stack.
    types = torch.full((count, language.max_depth + 1), -1, dtype=torch.long, device=tokens.device)
    places = types.clone()
    depth, alive = torch.zeros_like(types[:, 0]), torch.ones_like(types[:, 0], dtype=torch.bool)
    found = {name: torch.full_like(tokens, -1) for name in ("depth", "top_type", "top_place", "partner")}
    valid = torch.empty_like(tokens, dtype=torch.bool)
    rows = torch.arange(count, device=tokens.device)
    for place in range(length):
        opening = opens[:, place] & (depth < language.max_depth) & alive
        closing = closes[:, place] & (depth > 0) & (types[rows, depth] == kinds[:, place]) & alive
        alive = alive & (opening | closing | ~(opens[:, place] | closes[:, place]))
        if bool(closing.any()):
            row, other = rows[closing], places[rows, depth][closing]
            found["partner"][row, place] = other
            found["partner"][row, other] = place
        depth = depth + opening.long() - closing.long()
        types[rows[opening], depth[opening]] = kinds[opening, place]
        places[rows[opening], depth[opening]] = place
        found["depth"][:, place] = depth
        found["top_type"][:, place] = types[rows, depth]
        found["top_place"][:, place] = places[rows, depth]
        valid[:, place] = alive
    return Parse(**found, valid=valid)


def is_valid(language: Dyck, tokens: Int[Tensor, "count length"], *, complete: bool = False) -> Bool[Tensor, " count"]:
    """Return which sequences are prefixes of the language; with ``complete`` which are balanced words of it."""
    found = parse(language, tokens)
    return found.valid[:, -1] & (found.depth[:, -1] == 0) if complete else found.valid[:, -1]


def next_token_distribution(
    language: Dyck, depth: Int[Tensor, "*shape"], top_type: Int[Tensor, "*shape"]
) -> Float[Tensor, "*shape token"]:
    """Return the law of the next token (Wen et al. 2023, Eq. 3), given what `parse` says of a prefix.

    Open brackets are equally probable; of the closing ones only the stack's top is possible.

    Examples:
        >>> import torch
        >>> from identilens.dyck import Dyck, next_token_distribution
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
    """Return each token as a person writes it."""
    names = token_names(language)
    return [names[token] for token in tokens.tolist()]


def token_names(language: Dyck) -> list[str]:
    """Return the name of each token of the vocabulary."""
    pairs = [PAIRS[kind] if kind < len(PAIRS) else (f"({kind + 1}", f"){kind + 1}") for kind in range(language.types)]
    return ["<pad>", "<start>", "<end>", *(pair[0] for pair in pairs), *(pair[1] for pair in pairs)]


def probe_prefix(language: Dyck) -> Int[Tensor, " length"]:
    """Return the prefix with brackets of all types at all depths, such as "(((())))[[[[]]]]": 2 k D brackets.

    Attention is compared between seeds on it.
    """
    pairs = torch.arange(SPECIAL, language.vocabulary).view(2, language.types).T
    return pairs.repeat_interleave(language.max_depth, 1).flatten()


def check_tokens(language: Dyck, tokens: Int[Tensor, "count length"]) -> None:
    """Raise InputError unless every sequence is a prefix of the language, start tokens and padding apart."""
    if len(bad := (~is_valid(language, tokens)).nonzero()):
        row = int(bad[0])
        shown = "".join(write_brackets(language, tokens[row][(tokens[row] != PADDING) & (tokens[row] != START)]))
        raise InputError(
            f"expected prefixes of Dyck with {language.types} types and depth up to {language.max_depth}; sequence "
            f"{row} is not one: {shown:.80}. Sample them from the language, or raise its depth"
        )
