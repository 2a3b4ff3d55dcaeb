"""Words of texts and the tokens that they are made of."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from identilens.errors import InputError

T = TypeVar("T")


def token_places(
    parts: Sequence[str], tokenizer: Any
) -> Iterator[tuple[str, int | None, tuple[int, int]]]:
    """Yield the name of each token of a text or pair, which part it belongs to, and its characters there.

    Special tokens belong to no part.

    Raises:
        InputError: If the tokenizer does not tell which characters make up a token.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"{type(tokenizer).__name__} does not give the characters of a token. "
            "Pass a fast tokenizer: AutoTokenizer.from_pretrained(..., use_fast=True)."
        )
    encoded = tokenizer(*parts, return_offsets_mapping=True, verbose=False)
    names = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    yield from zip(names, encoded.sequence_ids(0), encoded["offset_mapping"], strict=True)


def word_at(spans: Sequence[tuple[int, int, T]], place: tuple[int, int], otherwise: T) -> T:
    """Return what belongs to the word that shares most characters with a token, or something else if none does."""
    start, end = place
    overlaps = [
        (min(end, stop) - max(start, begin), own)
        for begin, stop, own in spans
        if begin < end and start < stop
    ]
    return max(overlaps, key=lambda overlap: overlap[0])[1] if overlaps else otherwise
