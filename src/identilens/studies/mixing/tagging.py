"""Parts of speech: the tags of a treebank's words, carried over to sub-words."""

from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from identilens.errors import InputError
from identilens.runs.conllu import TaggedText, Tags
from identilens.studies.items import token_places, word_at

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
    rows = []
    for number, text in enumerate(texts):
        parts = parts_of(text)
        spans = [_tagged(part).spans(tags) for part in parts]
        for position, (name, part, place) in enumerate(token_places(parts, tokenizer)):
            tag = name if part is None else word_at(spans[part], place, NO_WORD)
            rows.append({"text": number, "position": position, "tag": tag})
    return pl.DataFrame(rows, schema=TAG_COLUMNS)


def parts_of(text: Any) -> Sequence[Any]:
    """Return a text, or the two of a pair, as a sequence."""
    return text if isinstance(text, tuple) else (text,)


def _tagged(text: str) -> TaggedText:
    if not isinstance(text, TaggedText):
        raise InputError(f"{text!r:.60} has no tags. Take all texts from a treebank (.conllu).")
    return text
