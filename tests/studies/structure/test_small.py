"""The numbers of a structure analysis of few texts, small enough for every run of the tests."""

import polars as pl
import pytest

from helpers.structures import structure_of


@pytest.fixture(scope="module")
def found():
    return structure_of(pairs=0, perturbed=0, count=4)


def test_the_finding_counts_the_patterns_of_the_table(found):
    said = found.summary()
    heads = list(found.table.iter_rows(named=True))
    changed = sum(row["pattern"] != row["effective_pattern"] for row in heads)
    patterned = sum(row["pattern"] not in ("mixed", "empty") for row in heads)
    assert (said.numbers["changed_heads"], said.numbers["patterned_heads"]) == (changed, patterned)
    assert f"{changed} of {len(heads)} heads look different in effective attention" in said.text


def test_energies_are_shares_and_visibilities_are_ranks(found):
    sums = found.spectrum.group_by("kind", "layer", "head").agg(
        pl.col("energy", "visibility").sum()
    )
    assert sums["energy"].to_list() == pytest.approx([1.0] * len(sums))
    ranks = found.texts.group_by("kind", "layer", "head").agg(pl.col("rank").mean())
    both = sums.join(ranks, on=["kind", "layer", "head"])
    assert both["visibility"].to_list() == pytest.approx(both["rank"].to_list())
