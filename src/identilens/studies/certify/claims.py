"""Claims on a row of attention, in words: "storm > ferry", "the storm > 0.3", "the storm"."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError, SettingError
from identilens.measures.attention.row_solver import ORDER_MARGIN
from identilens.models.token_names import unmarked

TRUE, FALSE, OPEN = (
    "true in every alternative",
    "false in every alternative",
    "neither proven nor refuted",
)
"""Verdicts of a comparison."""

_FORM = re.compile(r"\s*([^<>]*[^<>\s])\s*(?:([<>])\s*([^<>]*[^<>\s])\s*)?")


@dataclass(frozen=True)
class Claim:
    """The attention to some words, alone, or compared with that to other words or with a number.

    Attributes:
        words: The claim as it was written.
        left: Words whose keys' weights are added up.
        sign: ``>``, ``<``, or nothing.
        right: Words whose keys' weights are taken from these, or None.
        bound: The number that the attention to ``left`` is compared with; 0 where it is compared with ``right``.
    """

    words: str
    left: str
    sign: str
    right: str | None
    bound: float

    @classmethod
    def read(cls, words: str) -> "Claim":
        """Return a claim from its words.

        Raises:
            SettingError: If they have another form.
        """
        match = _FORM.fullmatch(words)
        if match is None:
            expected = "like 'storm > ferry', 'the storm > 0.3' or 'the storm'"
            raise SettingError("claim", expected, words)
        left, sign, right = match[1], match[2] or "", match[3]
        try:
            return cls(words, left, sign, None, float(right or 0))
        except ValueError:
            return cls(words, left, sign, right, 0.0)

    def coefficients(self, tokens: Sequence[str], text: int) -> Float[Tensor, " key"]:
        """Return what each key's weight counts: 1 for the words on the left, −1 for those on the right.

        Raises:
            InputError: If the text lacks the words.
        """
        counted = _spelled(self.left, tokens, text)
        return counted if self.right is None else counted - _spelled(self.right, tokens, text)

    def verdict(self, lo: float, hi: float) -> str | None:
        """Return what the ends of an interval say of the claim; None of words that are not compared."""
        if not self.sign:
            return None
        above, below = lo > self.bound + ORDER_MARGIN, hi < self.bound - ORDER_MARGIN
        if not (above or below):
            return OPEN
        return TRUE if above == (self.sign == ">") else FALSE


def _spelled(words: str, tokens: Sequence[str], text: int) -> Float[Tensor, " key"]:
    """Return 1 for each token of a run that spells the words, whatever their case; 0 for the others."""
    plain = [unmarked(token).strip().casefold() for token in tokens]
    wanted, found = "".join(words.split()).casefold(), torch.zeros(len(tokens), dtype=torch.float64)
    for start in range(len(plain)):
        for end in range(start + 1, len(plain) + 1):
            run = "".join(plain[start:end])
            if run == wanted:
                found[start:end] = 1.0
            if len(run) >= len(wanted):
                break
    if not found.any():
        raise InputError(
            f"text {text}: no run of tokens spells {words!r}; its tokens are {', '.join(map(repr, tokens[:20]))}"
            f"{' …' if len(tokens) > 20 else ''}."
        )
    return found
