"""What a page of certificates has room for, and which rows share a table."""

from dataclasses import replace

import polars as pl
import pytest

import identilens as idl
from helpers.charts import leaves
from helpers.written import certainty
from identilens.errors import InputError
from identilens.studies import head_views
from identilens.studies.certify import result

TEXT = "The keeper wrote down every ship."


def test_the_first_tolerance_is_printed():
    found = certainty(((0, 0),), ("0", "1%"))
    [(title, shown)] = found.overview().items()
    assert title == "Values and proven ends, tolerance 0"
    assert shown["functional"].to_list() == ["key 0", "key 1", "key 2"]
    [line] = found.token_lines()
    assert line.title.endswith("outcome kept exactly")
    assert len(found.lines()) == 2


def test_charts_of_any_number_of_layers_contain_as_many_as_a_page(monkeypatch):
    monkeypatch.setattr(head_views, "MOST_GROUPS", 5)
    monkeypatch.setattr(result, "CELLS", 40)
    found, layers = certainty(((0, 0),), ("0",)), pl.Series("layer", range(50))

    def of_all_layers(table):
        every = layers.to_frame().join(table.drop("layer"), how="cross")
        return every.select(table.columns)

    found = replace(found, table=of_all_layers(found.table), rows=of_all_layers(found.rows))
    assert len(found.by_query()) == 50
    assert sorted(found.bars()["layer"]) == [n for n in range(5) for _ in "abc"]
    sizes = {name: most_rows(chart) for name, chart in found.charts().items()}
    assert sizes == {"intervals": 15}


def test_the_map_of_a_head_frames_its_certain_cells_and_has_its_certified_rows_alone():
    found = idl.certify(idl.load("bundled"), TEXT, layers=3, heads=9, queries="1,3")
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


def test_a_row_is_chosen_by_its_name():
    chart = certainty().charts()["intervals"].to_dict()
    [leaf, *_] = leaves(chart)
    assert "row" in leaf["transform"][0]["filter"]
    assert len({row["row"] for row in next(iter(chart["datasets"].values()))}) == 6


def most_rows(chart):
    """Size of the largest table that a chart contains."""
    return max(map(len, chart.to_dict()["datasets"].values()))


def put_back(predicted, measured):
    found = certainty(((0, 0),))
    rows = found.rows.with_columns(predicted=pl.lit(predicted), measured=pl.lit(measured))
    return replace(found, rows=rows).summary().text


def test_a_row_that_does_nothing_to_the_outcome_is_not_compared_with_its_first_order():
    assert "times what the first order predicts" not in put_back(0.0, 0.0)
    assert "by 0.50 to 0.50 times what the first order predicts" in put_back(0.01, 0.005)
