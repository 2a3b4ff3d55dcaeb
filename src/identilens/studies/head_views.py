"""What charts of heads share: names, choices, and how much of a table a page contains."""

from collections.abc import Mapping, Sequence

import polars as pl

from identilens.charts.token_lines import Mark, MarkedToken, TokenLine, first_tokens
from identilens.models.sequences import names_at, sides
from identilens.runs.matrices import Tokens
from identilens.runs.tables import Row, counted


def marked_line(
    title: str, rows: pl.DataFrame, marks: Mapping[str, Mark], shares: Mapping[str, str]
) -> TokenLine:
    """Return a line of the columns ``token``, ``mark``, ``value`` and ``note``; shares of the marks are its legend."""
    title, shown = first_tokens(title, rows.select("token", "mark", "value", "note"))
    tokens = [
        MarkedToken(token, marks[mark], value, note) for token, mark, value, note in shown.rows()
    ]
    return TokenLine(title, tokens, [(marks[name], share) for name, share in shares.items()])


def axis_tokens(tokens: Tokens, row: Row) -> tuple[Sequence[str], Sequence[str]]:
    """Return what stands at the queries and keys of the head of a row with ``kind``, ``n_query`` and ``n_key``."""
    sequences = {sequence: tuple(names) for sequence, names in tokens.items()}
    query, key = sides(row["kind"], sequences)
    return names_at(sequences, query, row["n_query"], None), names_at(
        sequences, key, row["n_key"], None
    )


def size_in_words(queries: int, keys: int, d_v: int, rank: int, nullity: int) -> str:
    """Return the size of a map, and in how many directions its rows have no effect; of masked maps the last row."""
    return (
        f"{queries} queries × {keys} keys, d_v = {d_v}, rank {rank}. A row (the last one, if rows see different keys) "
        f"can change in {counted(nullity, 'direction')} without any effect on the output (nullity)."
    )
