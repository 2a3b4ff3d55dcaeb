"""Parts of speech: the tags of a treebank's words, carried over to sub-words."""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import polars as pl

from identilens.errors import InputError
from identilens.runs.conllu import TaggedText, Tags

NO_WORD = "no word"
"""Tag of tokens that overlap no tagged word."""

TAG_COLUMNS = {"text": pl.Int32, "position": pl.Int32, "tag": pl.String}


def tag_tokens(
    texts: Iterable[str | tuple[str, ...]], tokenizer: Any, tags: Tags = "xpos"
) -> pl.DataFrame:
    """Return the tag of every token of every text: columns text, position, tag.

    A token has the tag of the word with which it shares most characters; a special token is its own. The tokenizer
    must be a fast one.

    Raises:
        InputError: If a text is not of a treebank, or the tokenizer does not tell which characters make up a token.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"{type(tokenizer).__name__} does not give the characters of a token. "
            "Pass a fast tokenizer: AutoTokenizer.from_pretrained(..., use_fast=True)."
        )
    rows = []
    for number, text in enumerate(texts):
        parts = parts_of(text)
        words = [_tagged(part).spans(tags) for part in parts]
        read = tokenizer(*parts, return_offsets_mapping=True, verbose=False)
        names = tokenizer.convert_ids_to_tokens(read["input_ids"])
        tokens = zip(names, read.sequence_ids(0), read["offset_mapping"], strict=True)
        for position, (name, part, span) in enumerate(tokens):
            tag = name if part is None else _tag_at(words[part], *span)
            rows.append({"text": number, "position": position, "tag": tag})
    return pl.DataFrame(rows, schema=TAG_COLUMNS)


def _tag_at(words: Iterable[tuple[int, int, str]], start: int, end: int) -> str:
    """Return the tag of the word that shares most of some characters."""
    shared = [(min(end, stop) - max(start, begin), tag) for begin, stop, tag in words]
    most, tag = max(shared, key=itemgetter(0), default=(0, NO_WORD))
    return tag if most > 0 else NO_WORD


def parts_of(text: Any) -> Sequence[Any]:
    """Return a text, or the two of a pair, as a sequence."""
    return text if isinstance(text, tuple) else (text,)


def _tagged(text: str) -> TaggedText:
    if not isinstance(text, TaggedText):
        raise InputError(f"{text!r:.60} has no tags. Take all texts from a treebank (.conllu).")
    return text
