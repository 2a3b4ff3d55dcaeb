"""Single tokens: contributions to [CLS] by position, and to one token's hidden state through all layers."""

from collections.abc import Sequence
from typing import Literal

import polars as pl

from identilens.errors import InputError
from identilens.measures.mixing.neighbours import first_middle_last


def context_of_token(
    table: pl.DataFrame,
    tokens: pl.DataFrame,
    token: str = "[CLS]",
    centre: str = "[CLS]",
) -> pl.DataFrame:
    """Return each position's contribution to the first ``token`` of a text, relative to ``centre`` (Brunner Fig. 18).

    Position 0 is the first token named ``centre``, such as "[CLS]" or "[SEP]". For the first, the middle and the
    last layer.

    Returns:
        Columns kind, layer, offset (input position minus that of the centre), total over all texts, share of the
        layer's total, and texts. The token's own input is left out, since it is not context. No rows where no text
        contains both tokens.
    """
    hidden = tokens.filter(side="hidden").group_by("text", "kind", "token")
    first = hidden.agg(pl.col("position").min())
    whose, where = (first.filter(token=name).drop("token") for name in (token, centre))
    keys = ["text", "kind"]
    return (
        table.lazy()
        .filter((pl.col("kind") != "cross") & pl.col("layer").is_in(first_middle_last(table)))
        .join(whose.lazy().rename({"position": "hidden"}), on=[*keys, "hidden"], how="inner")
        .join(where.lazy().rename({"position": "centre"}), on=keys, how="inner")
        .filter(pl.col("input") != pl.col("hidden"))
        .group_by("kind", "layer", offset=pl.col("input") - pl.col("centre"))
        .agg(total=pl.col("contribution").sum(), texts=pl.col("text").n_unique())
        .with_columns(share=pl.col("total") / pl.col("total").sum().over("kind", "layer"))
        .select("kind", "layer", "offset", "total", "share", "texts")
        .sort("kind", "layer", "offset")
        .collect()
    )


def track_token(
    table: pl.DataFrame,
    tokens: pl.DataFrame,
    token: str | int,
    text: int = 0,
    kind: Literal["encoder", "decoder", "cross"] | None = None,
) -> pl.DataFrame:
    """Return the contribution of every input token to one token's hidden state, in all layers (Brunner Fig. 19–25).

    The token is given by its position, or written as by the tokenizer: then the first of several equal ones. The
    default kind is the first of the result.

    Returns:
        Columns layer, position, token (of the input), contribution, standard_error.

    Raises:
        InputError: If there is no such text or token; the message names the existing ones.
    """
    kind = table["kind"][0] if kind is None else kind
    here = tokens.filter(text=text, kind=kind)
    hidden, inputs = (here.filter(side=side).sort("position") for side in ("hidden", "input"))
    if not len(here):
        raise InputError(
            f"expected a text from 0 to {table['text'].max()} with {kind} states; got text {text}."
        )
    names = hidden["token"].to_list()
    if isinstance(token, str) and token not in names:
        raise InputError(
            f"text {text} does not contain {token!r}; its tokens are: {' '.join(names)}"
        )
    position = names.index(token) if isinstance(token, str) else token
    if not 0 <= position < len(hidden):
        raise InputError(f"text {text} has the positions 0 to {len(hidden) - 1}; got {position}.")
    return (
        table.filter(text=text, kind=kind, hidden=position)
        .rename({"input": "position"})
        .join(inputs.select("position", "token"), on="position", how="left", maintain_order="left")
        .select("layer", "position", "token", "contribution", "standard_error")
    )


def find_token(texts: Sequence[Sequence[str]], token: str) -> tuple[int, int]:
    """Return the first text that contains a token, and its first position there.

    The token is written as in the tables. The marks of a word's start or middle (" ", "Ġ", "▁", "##") may be left out.

    Examples:
        >>> from identilens.measures.mixing.tracking import find_token
        >>> find_token([["[CLS]", "a", "[SEP]"], ["[CLS]", "dog", "[SEP]"]], "dog")
        (1, 1)

    Raises:
        InputError: If no text contains it; the message names tokens that occur.
    """
    for written in (str, _unmarked):
        for number, names in enumerate(texts):
            for position, name in enumerate(names):
                if written(name) == token:
                    return number, position
    present = list(dict.fromkeys(name for names in texts for name in names))
    # Pieces of the requested word come first: usually the tokenizer has split it.
    present.sort(key=lambda name: not (name and _unmarked(name).lower() in token.lower()))
    raise InputError(
        f"no text contains the token {token!r}; tokens such as {', '.join(map(repr, present[:8]))} occur. "
        "Pass one of the model's tokens."
    )


def _unmarked(name: str) -> str:
    return name.strip("Ġ▁# ") or name
