"""What charts, finding and report of a mixing result show: the numbers of its tables, and tokens as they are."""

import pytest
import torch
from torch.testing import assert_close

from helpers.browsing import Visit
from helpers.mixings import tricky_mixing
from helpers.pages import SCRIPT
from identilens.studies.mixing.single import token_maps


@pytest.fixture(scope="module")
def tricky():
    return tricky_mixing()


@pytest.fixture(scope="module")
def report(tricky, tmp_path_factory):
    return tricky.tracking("harbour").to_html(
        tmp_path_factory.mktemp("mixing") / "new" / "report.html"
    )


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
