"""What a page of certificates has room for, and which rows share a table."""

from dataclasses import replace

import polars as pl
import pytest

import identilens as idl
from helpers.written import certainty
from identilens.errors import InputError
from identilens.studies import head_views
from identilens.studies.certify import result

TEXT = "The keeper wrote down every ship."


def test_charts_of_any_number_of_layers_contain_as_many_as_a_page(monkeypatch):
    monkeypatch.setattr(head_views, "MOST_GROUPS", 5)
    monkeypatch.setattr(result, "CELLS", 40)
    found, layers = certainty(((0, 0),), ("0",)), pl.Series("layer", range(50))

    def of_all_layers(table):
        every = layers.to_frame().join(table.drop("layer"), how="cross")
        return every.select(table.columns)

    found = replace(found, table=of_all_layers(found.table), rows=of_all_layers(found.rows))
    assert len(found.by_head()) == len(found.by_query()) == 50
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


def most_rows(chart):
    """Size of the largest table that a chart contains."""
    return max(map(len, chart.to_dict()["datasets"].values()))
