"""What the charts and the report of intervals show: the numbers of the tables, and tokens as they are."""

from dataclasses import replace

import polars as pl
import pytest
import torch

import identilens as idl
from helpers import zoo
from helpers.browsing import Visit
from helpers.charts import drop_downs, marks
from identilens.studies.intervals import views

SCRIPT = "<script>alert(1)</script>"
IDS = {"input_ids": torch.arange(5, 29)[None]}


@pytest.fixture(scope="module")
def found():
    """Intervals of two heads of a decoder, with a hostile token."""
    made = idl.intervals(idl.Lens(zoo.build("gpt2")), IDS, layers=1, heads=[0, 1])
    hostile = pl.when(pl.col("position") == 3).then(pl.lit(SCRIPT)).otherwise(pl.col("token"))
    return replace(made, positions=made.positions.with_columns(hostile.alias("token")))


def row(table, head, query):
    return table.filter((pl.col("head") == head) & (pl.col("query") == query))


def test_every_row_is_there_to_choose_with_its_bars_and_its_certain_order(found):
    chart = views.every_row(found.table, found.positions, found.order)
    drawn = pl.DataFrame(marks(chart)["bar"][0], infer_schema_length=None)
    offered = drop_downs(chart)
    widest = found.table.sort(views.WIDTH, descending=True).row(0, named=True)
    assert (offered["Head"][0], offered["Query"][0]) == (widest["head"], widest["query"]), "opens on the widest"
    assert set(offered["Head"]) == {0, 1}
    assert set(offered["Query"]) == set(range(24))
    assert offered["Compare with key"] == [None, *range(24)]
    shown, expected = drawn.filter(head_number=1, query=20), row(found.table, 1, 20)
    for name in ("weight", "lo", "hi", "effective", "minimum_norm"):
        assert shown[name].to_list() == pytest.approx(expected[name].to_list(), rel=1e-5, abs=1e-12)
    certain = row(found.order, 1, 20)
    for key, above, below in shown.select("key", "above", "below").iter_rows():
        assert {int(one) for one in above.split(",") if one} == set(certain.filter(above=key)["below"])
        assert {int(one) for one in below.split(",") if one} == set(certain.filter(below=key)["above"])
    assert f"{SCRIPT[:14]}" in "".join(drawn["label"])


def test_a_page_holds_whole_rows_and_says_what_it_leaves_out(found, monkeypatch):
    monkeypatch.setattr(views, "CELLS", 40)
    assert views.within_page(found.table)["query"].unique().to_list() == list(range(8)), "1 + 2 + … + 8 = 36 weights"
    section = found.sections()[0]
    assert section.note.startswith("This page contains the first 8 of 48 rows")
    monkeypatch.setattr(views, "CELLS", 0)
    assert len(views.within_page(found.table)) == 1, "a page is never empty"


def test_print_shows_the_widest_rows_and_every_head(found, tmp_path):
    charts = found.charts()
    maps = [f"widths_text0_layer1_head{head}_decoder" for head in (0, 1)]
    assert list(charts) == ["intervals", "width_by_head", *maps]
    widths = found.table.group_by("head", "query").agg(views.WIDTH.max()).sort("width", descending=True)
    drawn = pl.DataFrame(marks(charts["intervals"])["bar"][0], infer_schema_length=None)
    assert set(drawn.filter(row=0)["query"]) == {widths["query"][0]}
    assert len(drop_downs(charts["intervals"])["Row"]) == views.MOST_ROWS
    cells = pl.DataFrame(marks(charts[maps[1]])["rect"][0])
    assert len(cells) == 24 * 25 / 2, "hidden keys stay empty"
    expected = found.table.filter(head=1).select(views.WIDTH)["width"].to_list()
    assert cells["value"].to_list() == pytest.approx(expected, rel=1e-3, abs=1e-9)
    written = found.save_figures(tmp_path, ["svg"])
    assert len(written) == views.MOST_ROWS + 3
    assert all(path.stat().st_size > 3000 for path in written)


def test_queries_in_words(found):
    words = found.by_query()
    assert len(words) == len(found.rows)
    last = words.filter(head=1, query=23).row(0, named=True)
    assert last["token"] == found.names(0, "decoder", "query")[23]
    assert last["keys"] == 24
    top = found.rows.filter(head=1, query=23)["certified_top"].item()
    names = found.names(0, "decoder", "key")
    assert last["first in every alternative"] == (None if top is None else names[top])


def test_a_single_row_is_shown_weight_by_weight(found, capsys):
    one = idl.intervals(idl.Lens(zoo.build("gpt2")), IDS, layers=1, heads=0, queries=20)
    one.show()
    assert "Weights with their intervals" in capsys.readouterr().out
    assert one.overview()["Weights with their intervals"]["weight"].is_sorted(descending=True)
    assert one.charts().keys() == {"intervals", "width_by_head"}, "a map of one row says no more than its bars"
    assert "determined" not in one.summary().text


def test_the_report_in_a_browser(browser, found, tmp_path):
    visit = Visit(browser, found.to_html(tmp_path / "page.html"), width=390)
    chart, controls = visit.page.locator("#intervals-0"), visit.page.locator("#intervals-0-controls")

    def choose(**choices):
        """Return the keys from top to bottom after a choice; the long hostile label is cut before its number."""
        for label, name in choices.items():
            controls.get_by_label(label.replace("_", " ")).select_option(label=name)
        visit.page.wait_for_timeout(500)
        labels = [(one.bounding_box()["y"], one.text_content()) for one in chart.locator(".role-axis-label text").all()]
        return [int(label.split("·")[1]) for _, label in sorted(labels) if "·" in label]

    by_weight = row(found.table, 1, 20).sort("weight", descending=True)["key"].to_list()
    seen = choose(Head="text 0, decoder layer 1, head 1", Query=f"20: {found.names(0, 'decoder', 'query')[20]}")
    assert seen == [key for key in by_weight if key != 3]
    assert choose(Order_of_keys="by position") == [key for key in range(21) if key != 3]
    order = row(found.order, 1, 20)
    key = order["below"].mode()[0]
    choose(Compare_with_key=f"{key}: {found.names(0, 'decoder', 'key')[key]}")
    above = chart.locator(".mark-symbol [aria-label*='certainly above it']")
    assert above.count() == len(order.filter(below=key)) > 0
    visit.close()
