"""What charts, findings and report of constructions show: the numbers of the table."""

import polars as pl
import pytest

import identilens as idl
from helpers.charts import marks
from identilens.lab.dyck.construct import name_of


@pytest.fixture(scope="module")
def found():
    return idl.lab.construct_dyck(depth=2, lengths=(10, 60), count=3, off_balance=(0.0, 0.5, 2.0))


@pytest.mark.parametrize("measure", ["argmax", "support"])
def test_a_line_for_each_construction(found, measure):
    drawn = pl.DataFrame(marks(found.charts()[measure])["line"][0])
    expected = ["uniform attention (Corollary 1)", "balanced attention (Theorem 1)"]
    expected += ["0.5 logits off balance", "2 logits off balance"]
    assert drawn["built"].unique(maintain_order=True).to_list() == expected
    for row in found.table.iter_rows(named=True):
        built = name_of(row["construction"], row["off_balance"])
        seen = drawn.filter((pl.col("built") == built) & (pl.col("length") == row["length"]))
        assert seen[measure].to_list() == pytest.approx([row[measure]], rel=1e-5)


def test_the_finding_says_what_holds_at_every_length_and_what_breaks_at_the_longest(found):
    finding = found.summary()
    uniform, balanced, slightly, far = finding.text.splitlines()
    assert uniform.startswith(
        "Uniform attention (Corollary 1): at every length to 60 at least 100.0 % of the places"
    )
    assert balanced.startswith("Balanced attention (Theorem 1): at every length to 60")
    last = found.table.filter((pl.col("off_balance") == 2) & (pl.col("length") == 60)).row(
        0, named=True
    )
    assert f"{100 * last['argmax']:.1f} % of the closing brackets right at length 60" in far
    assert slightly.startswith("Moved 0.5 logits off balance (violation ")
    assert finding.numbers["uniform_argmax"] == finding.numbers["balanced_support"] == 1
    assert found.subject() == "Dyck of 2 types and depth 2, 3 prefixes of each length"
