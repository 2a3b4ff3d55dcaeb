"""How alternatives of attention weights are drawn."""

import re
from collections.abc import Mapping

import polars as pl
from torch import Tensor

from identilens.charts.cells import token_map
from identilens.charts.encoding import AnyChart
from identilens.charts.kit import lines, scatter, strip
from identilens.charts.packing import BITS
from identilens.charts.viewer import MAP_BUDGET, TokenMap, map_characters
from identilens.runs.matrices import MatrixKey, Tokens
from identilens.runs.tables import HEAD, Row
from identilens.studies.head_views import (
    axis_tokens,
    choose_head,
    file_name,
    head_name,
    numbered,
    of_whole_groups,
)

TITLES = {
    "sampled": "drawn evenly",
    "far": "far",
    "maximum_entropy": "maximum entropy",
    "realisable": "other queries, keys",
    "parameters": "other parameters",
}
"""What each alternative is called."""


_SAME_ANSWER = r"^(answer|layer)_([a-z]+)_(\d+)$", r"same \1, \2, row \3"


def title_of(alternative: str) -> str:
    """Return what an alternative is called; one that keeps an answer or a layer's output is named by aim and row."""
    return TITLES.get(alternative, re.sub(*_SAME_ANSWER, alternative))


MOST_MAPS = 24
"""Maps drawn for print: those of the largest distance."""

MAP_CELLS = 250_000
"""Cells of these maps, all together."""

STATES = 40_000
"""Changes of single hidden states that a page contains."""

_WORDS = 2_000
"""Characters of a page that the words about a map and its tokens take."""

_LEAST = 1e-16
_LEAST_STATE = 1e-9
_TITLE = pl.col("alternative").map_elements(title_of, pl.String).alias("title")
_DISTANCE = "Mean total variation distance from the weights"

Matrices = Mapping[str, Tensor]


def distances(alternatives: pl.DataFrame) -> AnyChart:
    """Return the distance of every alternative from the weights, by kind of alternative."""
    drawn = _in_order(alternatives).select(_TITLE, "mean_total_variation", *HEAD)
    return strip(
        drawn,
        "mean_total_variation",
        "title",
        "layer",
        x_title=_DISTANCE,
        x_format=".2~g",
        color_title="Layer",
        title="How far the alternatives lie from the weights",
        also=("text", "head", "kind"),
    )


def distance_and_change(alternatives: pl.DataFrame) -> AnyChart:
    """Return each alternative by its distance from the weights and the change of the final hidden state."""
    columns = ["mean_total_variation", "hidden_change", *HEAD]
    drawn = _in_order(alternatives).select(
        _TITLE, *columns, change=pl.col("hidden_change").clip(_LEAST)
    )
    ends = drawn.select(x=pl.col("mean_total_variation").max(), y=pl.col("change").min()).row(
        0, named=True
    )
    return scatter(
        drawn,
        "mean_total_variation",
        "change",
        "title",
        log_y=True,
        y_domain=((ends["y"] or _LEAST) / 3, 1.0),
        x_domain=(0, 1.05 * (ends["x"] or 1)),
        x_title=_DISTANCE,
        x_format=".2~g",
        y_title="Relative change of the final hidden state",
        y_format=".0e",
        color_title="Alternative",
        title="Distance from the weights and change of the model",
        also=("hidden_change", *HEAD),
    )


def changes_by_state(changes: pl.DataFrame) -> AnyChart:
    """Return the largest relative change of each hidden state over all heads, by alternative."""
    largest = pl.col("relative_change").max()
    of_state = _in_order(_hidden(changes)).group_by(
        "alternative", "state", "state_layer", maintain_order=True
    )
    return _change_lines(
        of_state.agg(largest).with_columns(_TITLE),
        "Largest change of each hidden state over all heads",
    )


def changes_of_head(alternatives: pl.DataFrame, changes: pl.DataFrame) -> AnyChart:
    """Return the relative change of each hidden state by alternative, for a head to choose."""
    drawn, heads = numbered(of_whole_groups(_hidden(changes), list(HEAD), STATES))
    lying = alternatives.sort("mean_total_variation", descending=True).join(
        drawn.unique(list(HEAD)), on=list(HEAD)
    )
    columns = ["state", "state_layer", "relative_change", "head_number"]
    chart = _change_lines(_in_order(drawn).select(_TITLE, *columns), "Change of each hidden state")
    return choose_head(chart, heads, lying["head_number"][0])


def viewer_maps(
    alternatives: pl.DataFrame, matrices: Matrices, tokens: Mapping[int, Tokens]
) -> list[TokenMap]:
    """Return raw, effective and alternative attention of every alternative, as far as a page contains them."""
    left, maps = MAP_BUDGET, []
    for row in alternatives.iter_rows(named=True):
        # What does not fit is not read.
        left -= map_characters(3 * BITS * row["n_query"] * row["n_key"]) + _WORDS
        if left >= 0 and (layers := _layers(row, matrices)):
            maps.append(_viewer_map(row, layers, tokens.get(row["text"], {})))
    return maps


def printed_maps(
    alternatives: pl.DataFrame, matrices: Matrices, tokens: Mapping[int, Tokens]
) -> dict[str, AnyChart]:
    """Return raw, effective and alternative attention of the alternatives that lie farthest away."""
    left, charts = MAP_CELLS, {}
    for row in (
        alternatives.sort("mean_total_variation", descending=True)
        .head(MOST_MAPS)
        .iter_rows(named=True)
    ):
        left -= 3 * row["n_query"] * row["n_key"]
        if left < 0:
            break
        change = f"final hidden state changed by {row['hidden_change']:.0e}"
        layers = {name.capitalize(): matrix for name, matrix in _layers(row, matrices).items()}
        if not layers:
            continue
        charts[f"maps_{file_name(row)}_{row['alternative']}"] = token_map(
            layers,
            *axis_tokens(tokens.get(row["text"], {}), row),
            f"{head_name(row).capitalize()}: {title_of(row['alternative'])}, {change}",
        )
    return charts


def in_words(table: pl.DataFrame) -> pl.DataFrame:
    """Return the table as a report shows it: kinds of alternatives by what they are called, no empty columns."""
    empty = [column.name for column in table if column.null_count() == len(table)]
    return table.with_columns(_TITLE.alias("alternative")).drop("n_query", "n_key", *empty)


def _viewer_map(row: Row, layers: dict[str, Tensor], tokens: Tokens) -> TokenMap:
    choices = {name: row[name] for name in ("text", "kind", "layer", "head")}
    choices["alternative"] = title_of(row["alternative"])
    distance = row["mean_total_variation"]
    moved = {"alternative − raw": ("alternative", "raw")}
    measured = [f"its final hidden state changed by {row['hidden_change']:.1e} of its length"]
    if row["outcome"] is not None:
        nats = row["outcome"] == "prediction"
        what = "sum of the heads' outputs" if row["outcome"] == "layer" else "model's answer"
        said = f"the {what} changed by {row['measured']:.1e} "
        said += "nats" if nats else "of its length"
        said += f" ({row['allowed']:.1e} were allowed)"
        if nats:
            said += ", its most likely token " + ("stays" if row["same_top"] else "is another one")
        measured.insert(0, said)
    others = {what: row[f"{what}_change"] for what in ("logits", "loss")}
    measured += [
        f"its {what} by {change:.1e}" for what, change in others.items() if change is not None
    ]
    bound = row["distance_bound"]
    bounded = "" if bound is None else f"; no alternative lies beyond {bound:.3f}"
    return TokenMap(
        choices,
        layers,
        *axis_tokens(tokens, row),
        (
            f"Simplex nullity {row['simplex_nullity']}. The alternative lies "
            f"{row['mean_total_variation']:.3f} away (mean "
            f"total variation; largest row {row['largest_total_variation']:.3f}{bounded}); put into the model, "
            f"{', '.join(measured)}." + (f" Note: {row['note']}." if row["note"] else "")
        ),
        moved,
        distance,
    )


def _layers(row: Row, matrices: Matrices) -> dict[str, Tensor]:
    """Return the maps of an alternative by title; of a long text, whose maps are not kept, none."""
    key = MatrixKey(row["text"], row["layer"], row["head"], row["kind"], "raw")
    names = {
        "raw": "raw",
        "effective": "effective",
        "alternative": f"alternative_{row['alternative']}",
    }
    keys = {title: str(key.named(name)) for title, name in names.items()}
    return {title: matrices[one] for title, one in keys.items() if one in matrices}


def _change_lines(states: pl.DataFrame, title: str) -> AnyChart:
    drawn = states.with_columns(change=pl.col("relative_change").clip(_LEAST_STATE))
    return lines(
        drawn,
        "state_layer",
        "change",
        "title",
        dash="state" if states["state"].n_unique() > 1 else None,
        log_y=True,
        x_title="Hidden state (0: embeddings)",
        y_title="Relative change",
        color_title="Alternative",
        y_domain=(_LEAST_STATE / 2, 1.0),
        y_format=".0e",
        also=("relative_change",),
        title=title,
    )


def _hidden(changes: pl.DataFrame) -> pl.DataFrame:
    return changes.drop_nulls("state_layer")


def _in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the kinds of alternatives in the order of `TITLES`, in which charts list them."""
    return frame.sort(
        pl.col("alternative").replace_strict(
            list(TITLES), list(range(len(TITLES))), default=len(TITLES)
        ),
        maintain_order=True,
    )
