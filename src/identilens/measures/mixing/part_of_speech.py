"""Own contribution by part of speech: words tagged, tags carried over to sub-words."""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

import polars as pl

from identilens.errors import InputError
from identilens.measures.mixing.own import box_statistics
from identilens.runs.conllu import Span, TaggedText

Tagger = Callable[[str], Iterable[Span]]
"""From a text to (start, end, tag) for its words."""

NO_WORD = "no word"
"""Tag of tokens that overlap no tagged word."""

_TAG_COLUMNS = {"text": pl.Int32, "position": pl.Int32, "tag": pl.String}


def part_of_speech(
    own: pl.DataFrame,
    texts: Sequence[TaggedText | str | tuple[str, str]],
    tokenizer: Any,
    tagger: Tagger | None = None,
) -> pl.DataFrame:
    """Return own contributions as boxes, one for each kind, layer and part of speech (Brunner Fig. 26–37).

    Args:
        own: One row a token and layer, from `Mixing.own`.
        texts: The texts of the analysis in order: tagged ones, or plain texts and pairs with a ``tagger``.
        tokenizer: The model's, a fast one: it knows which characters make up a token.
        tagger: From a text to (start, end, tag) for its words; `spacy_tagger` makes one.

    Returns:
        Columns as from `box_statistics`, tags in the order of their median at the last layer, highest first.

    Raises:
        InputError: If texts and contributions do not fit, or no tags are given.
    """
    return boxes_by_tag(own, tag_tokens(texts, tokenizer, tagger))


def tag_tokens(
    texts: Sequence[TaggedText | str | tuple[str, str]], tokenizer: Any, tagger: Tagger | None = None
) -> pl.DataFrame:
    """Return the tag of every token of every text: columns text, position, tag.

    Args:
        texts: Tagged ones, or plain texts and pairs with a ``tagger``.
        tokenizer: The model's, a fast one.
        tagger: From a text to (start, end, tag) for its words.

    Raises:
        InputError: If no tags are given, or the tokenizer cannot tell which characters make up a token.
    """
    rows = []
    for index, text in enumerate(texts):
        parts = text if isinstance(text, tuple) else (text,)
        tags = token_tags([_tagged(part, tagger) for part in parts], tokenizer)
        rows += [(index, position, tag) for position, tag in enumerate(tags)]
    return pl.DataFrame(rows, schema=_TAG_COLUMNS, orient="row")


def boxes_by_tag(own: pl.DataFrame, tags: pl.DataFrame) -> pl.DataFrame:
    """Return own contributions as boxes, as `part_of_speech` does, from tags that were found before.

    Args:
        own: One row a token and layer, from `Mixing.own`.
        tags: From `tag_tokens`, or `Mixing.tags`.

    Raises:
        InputError: If tags and contributions do not fit.
    """
    sizes = own.group_by("text").agg(pl.col("position").max() + 1).sort("text")
    lengths = dict(tags.group_by("text").agg(pl.col("position").max() + 1).iter_rows())
    for text, size in sizes.iter_rows():
        # A text that was cut has fewer tokens than its tags; its last token may be a special one.
        if lengths.get(text) != size:
            raise InputError(
                f"text {text} has {size} tokens in the result and {lengths.get(text, 0)} here. Pass the same texts in "
                "the same order, not cut by max_length."
            )
    boxes = box_statistics(own.join(tags, on=["text", "position"], how="inner"), ("kind", "layer", "tag"))
    last = boxes.filter(pl.col("layer") == pl.col("layer").max()).select("kind", "tag", last="median")
    return (
        boxes.join(last, on=["kind", "tag"])
        .sort(["kind", "layer", "last"], descending=[False, False, True])
        .drop("last")
    )


def token_tags(parts: Sequence[TaggedText], tokenizer: Any) -> list[str]:
    """Return a tag for each token of a text or pair: that of the word it shares most characters with.

    Special tokens are their own tag; a token that overlaps no word gets `NO_WORD`.

    Args:
        parts: One tagged text, or the two of a pair.
        tokenizer: A fast one.

    Raises:
        InputError: If the tokenizer cannot tell which characters make up a token.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"{type(tokenizer).__name__} does not tell which characters make up a token. "
            "Pass a fast tokenizer: AutoTokenizer.from_pretrained(..., use_fast=True)."
        )
    encoded = tokenizer(*(part.text for part in parts), return_offsets_mapping=True, verbose=False)
    names = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    tags = []
    for name, part, (start, end) in zip(names, encoded.sequence_ids(0), encoded["offset_mapping"], strict=True):
        tags.append(name if part is None else _tag_at(parts[part].spans, start, end))
    return tags


def spacy_tagger(pipeline: Any = "en_core_web_sm", *, fine: bool = True) -> Tagger:
    """Return a tagger that asks a spaCy pipeline.

    Args:
        pipeline: A loaded pipeline, or the name of an installed one.
        fine: The pipeline's fine tags (Penn tags for English) instead of universal ones.

    Raises:
        InputError: If spaCy or the pipeline is not installed.
    """
    if isinstance(pipeline, str):
        try:
            pipeline = import_module("spacy").load(pipeline)
        except (ImportError, OSError) as error:
            raise InputError(
                f"the spaCy pipeline {pipeline!r} is not installed. Run: pip install spacy, then "
                f"python -m spacy download {pipeline}; or pass tagged texts from read_conllu."
            ) from error
    return lambda text: [
        (word.idx, word.idx + len(word.text), word.tag_ if fine else word.pos_) for word in pipeline(text)
    ]


def _tagged(text: TaggedText | str, tagger: Tagger | None) -> TaggedText:
    if isinstance(text, TaggedText):
        return text
    if tagger is None:
        raise InputError(
            "plain texts need a tagger. Pass tagger=spacy_tagger(), a callable, or texts from read_conllu."
        )
    return TaggedText(text, tuple(tagger(text)))


def _tag_at(spans: Sequence[Span], start: int, end: int) -> str:
    overlaps = [(min(end, stop) - max(start, begin), tag) for begin, stop, tag in spans if begin < end and start < stop]
    return max(overlaps, key=lambda overlap: overlap[0])[1] if overlaps else NO_WORD
