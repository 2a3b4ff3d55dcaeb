"""What charts, finding and report of a mixing result show: the numbers of its tables, and tokens as they are."""

import polars as pl
import pytest
import torch
from torch.testing import assert_close

from helpers.browsing import Visit
from helpers.mixings import tagged_mixing, tricky_mixing
from helpers.pages import SCRIPT
from identilens.measures.mixing import by_relative_position
from identilens.studies.mixing.single import token_maps


@pytest.fixture(scope="module")
def tagged():
    return tagged_mixing()


@pytest.fixture(scope="module")
def tricky():
    return tricky_mixing()


@pytest.fixture(scope="module")
def report(tricky, tmp_path_factory):
    return tricky.tracking("harbour").to_html(
        tmp_path_factory.mktemp("mixing") / "new" / "report.html"
    )


def rows(chart):
    """Return the rows of every data set of a chart."""
    return [row for held in chart.to_dict()["datasets"].values() for row in held]


def test_boxes_and_bars_are_the_numbers(tricky):
    charts = tricky.charts()
    boxes = {(row["kind"], row["layer"]): row["median"] for row in rows(charts["own_contribution"])}
    shares = {
        (row["kind"], row["layer"]): row["not_largest"] for row in rows(charts["not_largest"])
    }
    for row in tricky.by_layer().iter_rows(named=True):
        assert boxes[row["kind"], row["layer"]] == pytest.approx(row["median_own"], rel=1e-5)
        assert shares[row["kind"], row["layer"]] == pytest.approx(row["not_largest"], rel=1e-5)
    assert len(boxes) == len(shares) == 6


def test_context_breaks_at_the_own_token(tagged):
    chart = tagged.charts()["relative_positions"]
    drawn = {(row["layer"], row["offset"]): row for row in rows(chart)}
    near = by_relative_position(tagged.table).filter(pl.col("offset").abs() <= 20)
    for row in near.iter_rows(named=True):
        assert drawn[row["layer"], row["offset"]]["share"] == pytest.approx(row["share"], rel=1e-5)
    assert [drawn[layer, 0]["share"] for layer in (1, 2, 3)] == [None] * 3
    assert len(drawn) == len(near) + 3


def test_maps_hold_every_number_of_the_texts_that_fit(tricky):
    maps = token_maps(tricky.series, (1, 2))
    assert len(maps) == sum(
        len(tricky.names(text, kind)) for text in (0, 1) for kind in tricky.kinds
    )
    (first,) = [one for one in maps if one.interest]
    assert (first.choices["kind"], first.choices["token"]) == ("encoder", "2: word1")
    assert list(first.layers) == ["contribution", "raw rollout", "effective rollout"]
    assert_close(first.layers["contribution"], torch.tensor(tricky.array(1, "encoder")[:, 2]))
    cross = next(one for one in maps if one.choices["kind"] == "cross")
    assert list(cross.keys) == tricky.names(0, "cross", "input")


def test_hostile_names_are_text_and_the_page_opens_on_the_tracked_token(report, tricky, browser):
    assert SCRIPT not in report.read_text("utf-8")
    visit = Visit(browser, report, 390, "dark")
    position = tricky.names(0, "encoder").index("harbour")
    maps = visit.page.locator("#token")
    assert (
        maps.get_by_label("Token", exact=True).locator(":checked").inner_text()
        == f"{position}: harbour"
    )
    maps.get_by_label("Token", exact=True).select_option(f"1: {SCRIPT}")
    visit.page.locator("#token canvas[data-layer=contribution]").focus()
    visit.page.keyboard.press("ArrowDown")
    text = visit.page.locator("#token .readout").inner_text()
    assert "contribution " in text
    value = tricky.array(0, "encoder")[0, 1, 0]
    assert float(text.split("contribution ")[1].split(",")[0]) == pytest.approx(value, abs=6e-4), (
        "as rounded for the page"
    )
    own = visit.page.locator("#own_contribution-0-controls").get_by_label("Hidden states")
    before = visit.page.locator("#own_contribution-0 svg").inner_html()
    own.select_option("decoder")
    visit.page.wait_for_function(
        "old => document.querySelector('#own_contribution-0 svg').innerHTML !== old", arg=before
    )
    visit.close()
