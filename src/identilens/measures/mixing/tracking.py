"""Single tokens: what [CLS] takes from where, and one token's context through all layers."""

from collections.abc import Sequence
from typing import Literal

import polars as pl

from identilens.errors import InputError
from identilens.measures.mixing.neighbours import first_middle_last


def context_of_token(
    table: pl.DataFrame, tokens: pl.DataFrame, token: str = "[CLS]", centre: str = "[CLS]",
    layers: Sequence[int] | None = None,
) -> pl.DataFrame:  # fmt: skip
    """Return what the first ``token`` of each text takes from each position, centred on ``centre`` (Brunner Fig. 18).

    Position 0 is the first token named ``centre``, such as "[CLS]" or "[SEP]". Layers are the first, the middle and
    the last when not given.

    Returns:
        Columns kind, layer, offset (input position less the centre's), total over all texts, share of the layer's
        total, and texts. The token's own input is left out: it is no context.

    Raises:
        InputError: If no text holds both tokens.
    """
    whose, where = (_first(tokens, name) for name in (token, centre))
    kept = first_middle_last(table) if layers is None else list(layers)
    keys = ["text", "kind"]
    rows = (
        table.lazy()
        .filter((pl.col("kind") != "cross") & pl.col("layer").is_in(kept))
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
    if not len(rows):
        raise InputError(
            f"no text holds both {token!r} and {centre!r} and something beside them; tokens such as "
            f"{', '.join(map(repr, tokens['token'].unique().sort().head(8)))} occur. Pass one of the model's tokens."
        )
    return rows


def track_token(
    table: pl.DataFrame, tokens: pl.DataFrame, token: str | int, text: int = 0,
    kind: Literal["encoder", "decoder", "cross"] | None = None, occurrence: int = 0,
) -> pl.DataFrame:  # fmt: skip
    """Return what one token's hidden state takes from every input token, through all layers (Brunner Fig. 19–25).

    The token is as the tokenizer writes it, or its position; of several of that name the occurrence counts from 0, as
    texts do. The kind is the result's first when not given.

    Returns:
        Columns layer, position, token (of the input), contribution, standard_error.

    Raises:
        InputError: If there is no such text or token, naming those there are.
    """
    kind = table["kind"][0] if kind is None else kind
    here = tokens.filter(text=text, kind=kind)
    hidden, inputs = (here.filter(side=side).sort("position") for side in ("hidden", "input"))
    if not len(here):
        raise InputError(f"expected a text from 0 to {table['text'].max()} with {kind} states; got text {text}.")
    position = token if isinstance(token, int) else _position(hidden, token, occurrence)
    if not 0 <= position < len(hidden):
        raise InputError(f"text {text} has the positions 0 to {len(hidden) - 1}; got {position}.")
    return (
        table.filter(text=text, kind=kind, hidden=position)
        .rename({"input": "position"})
        .join(inputs.select("position", "token"), on="position", how="left", maintain_order="left")
        .select("layer", "position", "token", "contribution", "standard_error")
    )


def find_token(texts: Sequence[Sequence[str]], token: str) -> tuple[int, int]:
    """Return the first text that holds a token, and its first position there.

    The token is as the tokenizer writes it; marks of a word's start or middle ("Ġ", "▁", "##") may be left out.

    Examples:
        >>> from identilens.measures.mixing import find_token
        >>> find_token([["[CLS]", "a", "[SEP]"], ["[CLS]", "dog", "[SEP]"]], "dog")
        (1, 1)

    Raises:
        InputError: If no text holds it, naming tokens that occur.
    """
    for written in (str, _unmarked):
        for number, names in enumerate(texts):
            for position, name in enumerate(names):
                if written(name) == token:
                    return number, position
    held = list(dict.fromkeys(name for names in texts for name in names))
    # Pieces of the word that was asked for come first: most often it was split.
    held.sort(key=lambda name: not (name and _unmarked(name).lower() in token.lower()))
    raise InputError(
        f"no text holds the token {token!r}; tokens such as {', '.join(map(repr, held[:8]))} occur. "
        "Pass one of the model's tokens."
    )


def _unmarked(name: str) -> str:
    return name.lstrip("Ġ▁#") or name


def _position(hidden: pl.DataFrame, token: str, occurrence: int) -> int:
    found = hidden.filter(pl.col("token") == token)["position"].to_list()
    if not 0 <= occurrence < len(found):
        raise InputError(
            f"the text holds {token!r} {len(found)} times, occurrence {occurrence} was asked for (from 0). "
            f"Its tokens are: {' '.join(hidden['token'])}"
        )
    return found[occurrence]


def _first(tokens: pl.DataFrame, name: str) -> pl.DataFrame:
    return tokens.filter(token=name, side="hidden").group_by("text", "kind").agg(pl.col("position").min())
