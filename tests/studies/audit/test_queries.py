"""An audit of some rows: every measure is of these rows alone, and the model runs as it is."""

import polars as pl
import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.zoo import build, ids
from identilens.errors import InputError

TEXTS = [ids(12), ids(9, 1)]


@pytest.fixture(scope="module", params=["llama", "bert"])
def lens(request):
    return idl.Lens(build(request.param).double())


def test_measures_are_those_of_the_rows_by_plain_products(lens):
    rows = [[3, 10], [3, 7]]
    audit = idl.audit(lens, TEXTS, queries=(3, -2), effects="none", certain_rows=0)
    table = audit.table.sort("text", "layer", "head").iter_rows(named=True)
    for text, capture in enumerate(lens.capture(TEXTS, weights=True)):
        for head, row in zip(capture.heads, table, strict=False):
            weights, null = head.family_weights[rows[text]], 0.0
            for query, one in zip(rows[text], weights, strict=True):
                seen = (
                    torch.ones(len(one), dtype=torch.bool)
                    if head.visible is None
                    else head.visible[query]
                )
                T = (head.values @ head.output_projection)[seen]
                left = torch.eye(len(T)) - T @ torch.linalg.pinv(T, rtol=1e-6)
                null += float((one[seen] @ left).square().sum())
            share = null / float(weights.square().sum())
            assert row["n_query"] == 2
            assert row["null_share"] == pytest.approx(share, abs=1e-6)
            assert row["rank"] == torch.linalg.matrix_rank(T, rtol=1e-6)
            assert row["nullity"] == len(T) - row["rank"]
            assert row["first_mass"] == pytest.approx(float(weights[:, 0].mean()), abs=1e-6)
    assert "Of each map only these rows are measured: 3, -2." in audit.sections()[0].text
    assert audit.matrices == {}


def test_certain_mass_is_that_of_the_positions_named(lens):
    audit = idl.audit(
        lens, TEXTS[:1], queries=("last", 4), layers=1, certain_rows=2, effects="none"
    )
    table = idl.certify(lens, TEXTS[:1], queries=("last", 4), layers=1, tolerance=0).table
    expected = table.group_by("head", "query").agg(pl.col("lo").sum()).sort("head", "query")
    found = audit.rows.sort("head", "query")
    assert found["query"].to_list() == expected["query"].to_list() == [4, 11] * 4
    assert found["certain_mass"].to_list() == pytest.approx(expected["lo"].to_list(), abs=1e-6)


def test_all_rows_by_name_give_the_whole_audit(lens):
    options = {"effects": "none", "certain_rows": 1, "examples": 0}
    whole = idl.audit(lens, TEXTS, **options).table
    named = idl.audit(lens, TEXTS, queries=range(-9, 0), **options).table
    columns = ["null_share", "pearson", "sink_mass", "output_share", "rank", "certain_mass"]
    one, other = (table.filter(text=1).select(columns) for table in (whole, named))
    assert_close(one.to_torch().double(), other.to_torch().double())


def test_rows_that_are_not_there_and_matrices_are_refused(lens):
    with pytest.raises(InputError, match="position"):
        idl.audit(lens, TEXTS, queries=12, effects="none")
    with pytest.raises(InputError, match="matrices"):
        idl.audit(lens, TEXTS, queries=1, matrices=True)
