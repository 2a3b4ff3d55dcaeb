"""Tokens as people read them: with spaces for the marks of a vocabulary, and characters for its bytes."""

import json
from collections.abc import Sequence
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

_SPACE = "▁"
_BYTES = {mark: byte for byte, mark in bytes_to_unicode().items()}
"""The byte that each character of a byte-level vocabulary stands for."""


def token_names(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """Return the name of each token: its text, with the space before a word.

    Vocabularies write spaces and bytes as other characters: ``Ġthe`` or ``▁the`` for " the", ``âĢľ`` for "“". Bytes
    that are only a part of a character are written as <0xE2>. The marks of WordPiece (``##``) stay, and so do special
    and added tokens.
    """
    pieces = list(map(str, tokenizer.convert_ids_to_tokens(list(ids))))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    description = json.loads(decoder.__getstate__()) if decoder else {}
    steps = description.get("decoders", [description])
    of_bytes = any(step.get("type") == "ByteLevel" for step in steps)
    # Whether a step of the decoder makes spaces of the mark.
    marked = hasattr(tokenizer, "sp_model") or any(
        _SPACE in (step.get("replacement"), (step.get("pattern") or {}).get("String"))
        for step in steps
    )
    suffix = getattr(getattr(backend, "model", None), "end_of_word_suffix", None)
    added = getattr(tokenizer, "added_tokens_decoder", {})

    def name(piece: str, number: int) -> str:
        if number in added:
            return piece
        if of_bytes and all(mark in _BYTES for mark in piece):
            content = bytes(_BYTES[mark] for mark in piece)
            # Bytes that are no character are written out.
            marks = content.decode("utf-8", "surrogateescape")
            piece = "".join(
                f"<0x{ord(mark) - 0xDC00:02X}>" if "\udc80" <= mark <= "\udcff" else mark
                for mark in marks
            )
        if marked:
            piece = piece.replace(_SPACE, " ")
        return piece.removesuffix(suffix) + " " if suffix and piece.endswith(suffix) else piece

    return tuple(map(name, pieces, ids))


def unmarked(name: str) -> str:
    """Return a token as it is read, without the space before a word or WordPiece's mark of a word's middle."""
    return name.strip(" ").removeprefix("##") or name


def joined(names: Sequence[str]) -> str:
    """Return tokens as the text that they make, as well as their names tell."""
    # Tokens that begin a word have a space before them, or those that go on with one have a mark.
    between = "" if any(name.startswith(" ") for name in names) else " "
    return between.join(names).replace(" ##", "")
