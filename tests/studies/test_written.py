"""What is said and drawn of comparisons of audits whose tables are written by hand: the texts are beside this file."""

from dataclasses import replace

import polars as pl
import pytest

from helpers.telling import recorded, told
from helpers.written import audited, first_rows
from identilens.studies.comparison import compare


def named(result, name="toy", texts="ab", change=0.0, keys=0):
    """A result with a record of its own, and a larger null share in later texts and heads."""
    record = {
        **result.provenance, "fingerprint": f"{name}{'0' * 9}", "model": {"name": name},
        "texts": {"count": len(texts), "sha256": list(texts)},
    }  # fmt: skip
    moved = pl.col("null_share") + change * (1 + pl.col("text") + 2 * pl.col("head"))
    table = result.table.with_columns(moved, n_key=pl.col("n_key") + keys)
    return replace(result, table=table, provenance=record)


CASES = {
    "the same texts": lambda: compare(named(audited()), named(audited(), change=0.125)),
    "other texts and models": lambda: compare(
        named(audited()), named(audited(), "other", "cd", -0.0625, 2)
    ),
    "one row": lambda: compare(
        named(first_rows(audited()), texts="a"), named(first_rows(audited()), texts="a", change=0.5)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_said_and_drawn(name):
    assert told(CASES[name]()) == recorded(__file__, name)
