"""Parts of speech: words tagged by a treebank, a spaCy pipeline or a function, tags carried over to sub-words."""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

import polars as pl

from identilens.errors import InputError
from identilens.runs.conllu import Span, TaggedText, Tags
from identilens.studies.items import token_places, word_at

Tagger = Callable[[str], Iterable[Span]]  # From a text to (start, end, tag) for its words.
NO_WORD = "no word"  # Tag of tokens that overlap no tagged word.
TAG_COLUMNS = {"text": pl.Int32, "position": pl.Int32, "tag": pl.String}


def tag_tokens(
    texts: Iterable[str | tuple[str, ...]],
    tokenizer: Any,
    tagger: Tagger | None = None,
    tags: Tags = "xpos",
) -> pl.DataFrame:
    """Return the tag of every token of every text: columns text, position, tag.

    Texts from a treebank carry their tags; the tagger tags the others. The tokenizer must be a fast one.

    Raises:
        InputError: If a text has no tags and there is no tagger, or the tokenizer does not tell which characters make
            up a token.
    """
    rows = [
        {"text": number, "position": position, "tag": tag}
        for number, text in enumerate(texts)
        for position, tag in enumerate(_token_tags(parts_of(text), tokenizer, tagger, tags))
    ]
    return pl.DataFrame(rows, schema=TAG_COLUMNS)


def spacy_tagger(pipeline: Any = "en_core_web_sm", tags: Tags = "xpos") -> Tagger:
    """Return a tagger that asks a spaCy pipeline, loaded or by name, for its own fine tags or universal ones.

    Raises:
        InputError: If spaCy or the pipeline is not installed.
    """
    if isinstance(pipeline, str):
        try:
            pipeline = import_module("spacy").load(pipeline)
        except (ImportError, OSError) as error:
            raise InputError(
                f"the spaCy pipeline {pipeline!r} is not installed. Run: pip install spacy, then "
                f"python -m spacy download {pipeline}; or take texts from a treebank (.conllu)."
            ) from error
    fine = tags == "xpos"
    return lambda text: [
        (word.idx, word.idx + len(word.text), word.tag_ if fine else word.pos_)
        for word in pipeline(text)
    ]


def parts_of(text: Any) -> Sequence[Any]:
    """Return a text, or the two of a pair, as a sequence."""
    return text if isinstance(text, tuple) else (text,)


def _token_tags(
    parts: Sequence[str], tokenizer: Any, tagger: Tagger | None, tags: Tags
) -> list[str]:
    """Return each token's tag: that of the word it shares most characters with, or its own if it is a special token."""
    spans = [_spans(part, tagger, tags) for part in parts]
    return [
        name if part is None else word_at(spans[part], place, NO_WORD)
        for name, part, place in token_places(parts, tokenizer)
    ]


def _spans(text: str, tagger: Tagger | None, tags: Tags) -> list[Span]:
    if isinstance(text, TaggedText):
        return text.spans(tags)
    if tagger is None:
        raise InputError(
            f"{text!r:.60} has no tags. Take texts from a treebank (.conllu), or name a spaCy pipeline."
        )
    return list(tagger(text))
