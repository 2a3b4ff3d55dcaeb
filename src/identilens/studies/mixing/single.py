"""Contributions of single texts and tokens: arrays, names, tokens worth drawing, and maps for the report."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import polars as pl
import torch
from jaxtyping import Float

from identilens.charts.labels import shortened, visible_text
from identilens.charts.viewer import TokenMap
from identilens.measures.mixing import track_token
from identilens.models.token_names import joined
from identilens.studies.mixing.series import CLASS_TOKENS, SEPARATORS, Series

Measure = Literal["contribution", "standard_error", "norm", "raw_rollout", "effective_rollout"]

MOST_TEXTS = 20
TEXT_BUDGET = 4_000_000
"""Texts, and characters spent on them, whose every number a report contains."""

MOST_INPUTS = 40
"""Input tokens of a chart of single hidden tokens."""

_SPECIAL = [*CLASS_TOKENS, *SEPARATORS]


def array_of(
    rows: pl.DataFrame, measure: Measure = "contribution"
) -> Float[np.ndarray, "layer hidden input"]:
    """Return a column of one text's and kind's rows as an array."""
    return (
        rows[measure]
        .to_numpy()
        .reshape([rows[name].n_unique() for name in ("layer", "hidden", "input")])
    )


def names_of(tokens: pl.DataFrame, text: int, kind: str, side: str = "hidden") -> list[str]:
    """Return what stands at one text's hidden or input positions."""
    return tokens.filter(text=text, kind=kind, side=side).sort("position")["token"].to_list()


def drawn_tokens(series: Series, tracked: pl.DataFrame) -> tuple[int, list[int]]:
    """Return a text and the positions to draw: the tracked token, or words of the first text.

    Those are the words that kept least and most of themselves at the last layer.
    """
    if len(tracked):
        return tracked["text"][0], [tracked["position"][0]]
    last = pl.col("layer") == pl.col("layer").max()
    tokens = series.own_rows.filter(last, kind=series.kinds[0], text=0).sort("contribution")
    named = ~pl.col("token").is_in(_SPECIAL) & pl.col("token").str.contains(r"\p{L}{3}")
    words = tokens.filter(named)["position"].to_list() or tokens["position"].to_list()
    return 0, list(dict.fromkeys([words[0], words[-1]]))


def token_rows(series: Series, text: int, positions: list[int]) -> pl.DataFrame:
    """Return what hidden tokens take from the input tokens that contribute most to any of them, with labels."""
    names = names_of(series.tokens, text, series.kinds[0])
    shown = pl.col("token").map_elements(visible_text, return_dtype=pl.String)
    label = pl.format("{}: {}", "position", shown)
    frames = []
    for position in positions:
        rows = track_token(series.table, series.tokens, position, text)
        labels = {
            "state": pl.lit(f"{position}: {visible_text(names[position])}"),
            "own": pl.col("position") == position,
        }
        frames.append(rows.with_columns(input=label, **labels))
    rows = pl.concat(frames)
    most = rows.sort("contribution", descending=True, maintain_order=True).unique(
        "position", keep="first", maintain_order=True
    )
    return rows.join(most.head(MOST_INPUTS), on="position", how="semi", maintain_order="left")


def token_maps(
    series: Series, opening: tuple[int, int], budget: int = TEXT_BUDGET
) -> list[TokenMap]:
    """Return a map [layer, input] of every hidden token of the texts that fit into a budget of characters."""
    sizes = series.table.group_by("text").len("size")
    # The text to open on is taken first.
    sizes = sizes.sort(pl.col("text") != opening[0], "text")
    chosen = sizes.filter(8 * pl.col("size").cum_sum() <= budget).head(MOST_TEXTS)["text"]
    return [one for text in chosen.sort() for one in _text_maps(series, text, opening)]


def _text_maps(series: Series, text: int, opening: tuple[int, int]) -> Iterator[TokenMap]:
    of_text = series.table.filter(pl.col("text") == text)
    start = visible_text(joined(names_of(series.tokens, text, series.kinds[0], "input")[:12]))
    label = f"{text}: {shortened(start, 36)}"
    for kind in series.kinds:
        rows = of_text.filter(kind=kind)
        if not len(rows):
            continue
        measures: tuple[Measure, ...] = ("contribution", "raw_rollout", "effective_rollout")
        arrays = {
            name.replace("_", " "): torch.tensor(array_of(rows, name))
            for name in measures
            if not rows[name].null_count()
        }
        hidden, inputs = (names_of(series.tokens, text, kind, side) for side in ("hidden", "input"))
        layers = [f"layer {layer}" for layer in rows["layer"].unique().sort()]
        for place, position in enumerate(rows["hidden"].unique().sort()):
            name = visible_text(hidden[position])
            yield TokenMap(
                choices={"text": label, "kind": kind, "token": f"{position}: {name}"},
                layers={measure: array[:, place] for measure, array in arrays.items()},
                queries=layers,
                keys=inputs,
                note=""
                if kind == "cross"
                else f"The token itself is input {position}. A row sums to 1.",
                interest=int(kind == series.kinds[0] and (text, position) == opening),
            )
