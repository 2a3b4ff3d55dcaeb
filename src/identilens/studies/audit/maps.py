"""The attention maps that an audit kept: those that fit into a page, what a page says of them."""

from collections.abc import Mapping, Sequence
from typing import Literal

import polars as pl

from identilens.charts.labels import said, shortened, visible_text
from identilens.charts.packing import BASIS_BITS, BITS, HeadSpace
from identilens.charts.viewer import TokenMap
from identilens.models.token_names import joined, unmarked
from identilens.runs.matrices import Matrices, MatrixKey, Tokens
from identilens.runs.tables import HEAD, Row, counted, table_of
from identilens.studies.certify.result import SIGNS
from identilens.studies.certify.rows import (
    EVEN,
    FLOOR,
    VERDICTS,
)
from identilens.studies.head_views import axis_tokens, size_in_words
from identilens.studies.outcomes import WITHIN

PAGE_BUDGET = 7_000_000
"""Characters of a report that may be spent on maps, before they are deflated."""

RULES = {
    "within": WITHIN,
    "even": EVEN,
    "floor": FLOOR,
    "verdicts": list(zip(SIGNS, VERDICTS, strict=True)),
}
"""Rules of the verdicts that a page gives on the weights of a row."""

_FACTS = """\
{size}
Certain mass {certain_mass_bfloat16:≥.2f} up to bfloat16's rounding, {certain_mass:≥.2f} exactly ({certain_rows:row}).
{sink_mass:.1%} of the attention on {sink!r}, which brings {sink_norm_share:.1%} of the norms. Null share \
{null_share:.3f}.
Correlation of raw and effective attention {pearson:.2f}.
"""


def kept_maps(
    table: pl.DataFrame, matrices: Matrices, what: Literal["effective", "means"] = "effective"
) -> pl.DataFrame:
    """Return the rows of the table whose matrices were kept, whole or as means over blocks."""
    keys = [key for name in matrices if (key := MatrixKey.parse(name)) and key.name == what]
    places = [{name: getattr(key, name) for name in HEAD} for key in keys]
    return table.join(table_of(HEAD, places), on=list(HEAD), how="semi")


def fitting_maps(kept: pl.DataFrame, budget: int = PAGE_BUDGET) -> pl.DataFrame:
    """Return the first maps that fit into so many characters of a page."""
    numbers = BITS * pl.col("n_query") + BASIS_BITS * pl.col("rank")
    return kept.filter((numbers * pl.col("n_key") / 6).cum_sum() <= budget)


def page_maps(
    shown: pl.DataFrame, matrices: Matrices, tokens: Mapping[int, Tokens]
) -> list[TokenMap]:
    """Return maps for the viewer: raw attention, and what the head's output depends on, from which all else follows.

    Of long texts they are means over blocks.
    """
    return [
        _page_map(row, matrices, tokens.get(row["text"], {})) for row in shown.iter_rows(named=True)
    ]


def _page_map(row: Row, matrices: Matrices, tokens: Tokens) -> TokenMap:
    queries, keys = axis_tokens(tokens, row)
    key = MatrixKey(**{name: row[name] for name in HEAD}, name="raw")
    first = tokens.get("encoder", queries)
    words = shortened(visible_text(joined(first[:12])), 36)
    text = f"{row['text']} ({counted(len(first), 'token')}): {words}"
    choices = {"text": text, "kind": row["kind"], "layer": row["layer"], "head": row["head"]}
    if (means := matrices.get(str(key.named("means")))) is not None:
        size = -(-row["n_key"] // means.shape[1])
        note = (
            "This text is too long for a map of every token: each cell is the attention of a block of neighbouring "
            f"queries, on average, to all keys of a block (of up to {size} tokens). {_facts(row)}"
        )
        queries, keys = map(_block_names, (queries, keys), means.shape)
        return TokenMap(choices, {"block means": means}, queries, keys, note, interest=-1)
    raw, effective = (matrices[str(key.named(name))].float() for name in ("raw", "effective"))
    values, visible = (matrices.get(str(key.named(name))) for name in ("values", "visible"))
    space = None if values is None else HeadSpace(values, row["rank"], visible, RULES)
    # Of a map without a mask the page works out effective attention by itself.
    derived = space is not None and visible is None
    return TokenMap(
        choices,
        {"raw": raw} | ({} if derived else {"effective": effective}),
        queries,
        keys,
        _facts(row),
        {"null": ("raw", "effective")},
        _telling(row),
        space,
    )


def _block_names(tokens: Sequence[str], blocks: int) -> list[str]:
    """Return the place and the first token of each block of `members`."""
    starts = [-(-block * len(tokens) // blocks) for block in range(blocks)]
    return [f"{start} {unmarked(tokens[start])}" for start in starts]


def _telling(row: Row) -> float:
    """Return how much there is to learn from a map: much of it certain, and yet unlike what the output depends on."""
    if row["certain_mass_bfloat16"] is None or row["pearson"] is None:
        return row["null_share"]
    return row["certain_mass_bfloat16"] * (1 - row["pearson"])


def _facts(row: Row) -> str:
    size = size_in_words(*(row[name] for name in ("n_query", "n_key", "d_v", "rank", "nullity")))
    numbers = {**row, "size": size, "sink": visible_text(row["sink_token"])}
    return " ".join(said(_FACTS, numbers))
