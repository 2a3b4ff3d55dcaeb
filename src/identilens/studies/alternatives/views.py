"""How alternatives of attention weights are drawn."""

import re
from collections.abc import Mapping

import polars as pl
from torch import Tensor

from identilens.charts.labels import said
from identilens.charts.packing import BITS
from identilens.charts.viewer import MAP_BUDGET, TokenMap, map_characters
from identilens.runs.matrices import MatrixKey, Tokens
from identilens.runs.tables import Row
from identilens.studies.head_views import axis_tokens

TITLES = {
    "sampled": "drawn evenly",
    "far": "far",
    "realisable": "other queries, keys",
}
"""What each alternative is called."""


_SAME_ANSWER = r"^(answer|layer)_([a-z]+)_(\d+)$", r"same \1, \2, row \3"


def title_of(alternative: str) -> str:
    """Return what an alternative is called; one that keeps an answer or a layer's output is named by aim and row."""
    return TITLES.get(alternative, re.sub(*_SAME_ANSWER, alternative))


_WORDS = 2_000
"""Characters of a page that the words about a map and its tokens take."""

_NOTE = """\
Simplex nullity {simplex_nullity}. The alternative lies {mean_total_variation:.3f} away (mean total variation; largest \
row {largest_total_variation:.3f}).
No alternative lies beyond {distance_bound_bfloat16:.3f} up to bfloat16's rounding, {distance_bound:.3f} exactly.
Put into the model, it changes the final hidden state by {hidden_change:.1e} of its length.
The outcome ({outcome}) changes by {measured:.1e}; {allowed:.1e} were allowed.
Logits change by {logits_change:.1e}.
The loss changes by {loss_change:.1e}.
Note: {note}.
"""
Matrices = Mapping[str, Tensor]


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


def _viewer_map(row: Row, layers: dict[str, Tensor], tokens: Tokens) -> TokenMap:
    choices = {name: row[name] for name in ("text", "kind", "layer", "head")}
    choices["alternative"] = title_of(row["alternative"])
    return TokenMap(
        choices,
        layers,
        *axis_tokens(tokens, row),
        " ".join(said(_NOTE, {**row, "note": row["note"] or None})),
        {"alternative − raw": ("alternative", "raw")},
        row["mean_total_variation"],
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
