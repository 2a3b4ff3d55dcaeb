"""Certificates of texts: tables, findings, lines of tokens, charts, and the report in a browser."""

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

import identilens as idl
from helpers import zoo
from helpers.heads import seeded
from identilens.errors import InputError
from identilens.measures.attention import sample_alternatives

TEXT = (
    "Nobody in the village was surprised, because the old people had said for weeks that the ice in the hills would go "
    "at once, and that the lower meadow would stand under water until the end of the month."
)


@pytest.fixture(scope="module")
def one(bundled):
    return idl.certify(bundled, TEXT, layers=3, heads=10, queries=["village"], tolerance=0)


@pytest.fixture(scope="module")
def head(bundled):
    """All rows of one head."""
    return idl.certify(bundled, TEXT, layers=3, heads=7, tolerance=0)


def test_every_interval_holds_the_weight_and_every_alternative(head, bundled):
    table = head.table
    assert ((table["lo"] <= table["value"]) & (table["value"] <= table["hi"])).all()
    captured = next(bundled.capture(TEXT, weights=True))
    seen = next(one for one in captured.heads if (one.layer, one.head) == (3, 7))
    n = len(seen.weights)
    assert len(table) == n * n
    assert (head.rows["simplex_nullity"] == n - 33).all()
    lo, hi = (torch.tensor(table[name].to_list()).view(n, n) for name in ("lo", "hi"))
    drawn = sample_alternatives(
        seen.weights, seen.projected, 20, method="uniform", generator=seeded()
    )
    for other in drawn:
        assert (other >= lo - 1e-7).all()
        assert (other <= hi + 1e-7).all()
    tops = [(row, top) for row, top in enumerate(head.rows["certified_top"]) if top is not None]
    assert tops, "some queries of this text have a certain first key"
    assert all(seen.weights[row].argmax() == top for row, top in tops)


def test_a_row_alone_is_that_row_of_its_head_and_its_shares_sum_to_one(one, head, bundled):
    chosen = idl.certify(bundled, TEXT, layers=3, heads=7, queries=["the", 0], tolerance=0)
    names = dict(head.rows.select("query", "query_token").iter_rows())
    places = [0] + [place for place, name in names.items() if name == "the"]
    assert chosen.rows["query"].to_list() == places
    expected = head.table.filter(pl.col("query").is_in(places))
    assert_frame_equal(chosen.table, expected, abs_tol=1e-8)
    assert (
        chosen.rows["certified_top"].to_list()
        == head.rows["certified_top"].gather(places).to_list()
    )
    assert one.table["norm_share"].sum() == pytest.approx(1)
    assert one.table["contribution"].sum() == pytest.approx(1)
    assert set(one.table["query_token"]) == {"village"}


def test_rows_of_a_decoder_have_their_own_null_spaces():
    lens = idl.Lens(zoo.build("gpt2"))
    found = idl.certify(
        lens, {"input_ids": torch.arange(5, 30)[None]}, layers=0, heads=1, tolerance=0
    )
    assert (found.table["key"] <= found.table["query"]).all()
    assert found.rows["simplex_nullity"].to_list() == [max(0, row + 1 - 9) for row in range(25)]
    first = found.rows.filter(pl.col("simplex_nullity") == 0)["query"]
    fixed = found.table.filter(pl.col("query").is_in(first.implode()))
    assert (fixed["hi"] - fixed["lo"]).max() <= 1e-6
    words = found.by_query()
    tops = [None if top is None else found.table.filter(query=query, key=top)["token"].item()
            for query, top in found.rows.select("query", "certified_top").iter_rows()]  # fmt: skip
    assert words["first in every alternative"].to_list() == tops


SHORT = "The keeper wrote down every ship."


def test_the_map_of_a_head_frames_its_certain_cells_and_has_its_certified_rows_alone():
    found = idl.certify(idl.load("bundled"), SHORT, layers=3, heads=9, queries="1,3")
    chart = found.plot_map(layer=3, head=9)
    spec = chart.to_dict()
    cells, framed = (spec["datasets"][one["data"]["name"]] for one in spec["concat"][0]["layer"])
    rows = found.table.filter(tolerance="bfloat16")
    at = {1: 0, 3: 1}
    said = {
        (at[query], key): value for query, key, value in rows.select("query", "key", "value").rows()
    }
    drawn = {(one["query"], one["key"]): one["value"] for one in cells}
    assert drawn == pytest.approx(said, rel=1e-3)
    certain = rows.filter(pl.col("verdict").str.starts_with("determined"))
    assert {(one["query"], one["key"]) for one in framed} == {
        (at[query], key) for query, key in certain.select("query", "key").rows()
    }
    assert 0 < len(framed) < len(cells)
    assert chart.title["text"] == "L3H9"
    assert "map_text0_layer3_head9_encoder" in found.charts()
    with pytest.raises(InputError, match="layers=2, heads=9"):
        found.plot_map(layer=2, head=9)
