"""What the charts and the report of alternatives show: the numbers of the tables, and tokens as they are."""

from dataclasses import replace

import polars as pl
import pytest
import torch

import identilens as idl
from helpers import zoo
from helpers.browsing import Visit
from identilens.studies.alternatives import views

SCRIPT = "<script>alert(1)</script>"
IDS = {"input_ids": torch.arange(5, 29)[None]}


@pytest.fixture(scope="module")
def found():
    """Alternatives of two heads of a decoder, with a hostile token."""
    made = idl.alternatives(
        idl.Lens(zoo.build("gpt2")),
        IDS,
        layers=1,
        heads=[0, 1],
        realisable=True,
        starts=1,
        distance=0.05,
    )
    return replace(made, tokens={0: {"encoder": [SCRIPT, *made.tokens[0]["encoder"][1:]]}})


def of(table, head, alternative):
    return table.filter((pl.col("head") == head) & (pl.col("alternative") == alternative))


def test_maps_stand_side_by_side_with_what_was_measured(found):
    maps = views.viewer_maps(found.found, found.matrices, found.tokens)
    assert len(maps) == 10
    far = next(
        one for one in maps if one.choices["head"] == 1 and one.choices["alternative"] == "far"
    )
    assert list(far.layers) == ["raw", "effective", "alternative"]
    assert torch.equal(
        far.layers["alternative"], found.matrices["text0.layer1.head1.decoder.alternative_far"]
    )
    row = of(found.table, 1, "far").row(0, named=True)
    assert f"lies {row['mean_total_variation']:.3f} away" in far.note
    assert f"its final hidden state changed by {row['hidden_change']:.1e}" in far.note
    assert far.interest == found.table.filter(head=1)["mean_total_variation"].max()
    assert far.queries[0] == SCRIPT


def test_the_report_in_a_browser(browser, found, tmp_path):
    visit = Visit(browser, found.to_html(tmp_path / "page.html"), width=390)
    maps = visit.page.locator("#alternatives")
    maps.get_by_label("Head", exact=True).select_option("1")
    maps.get_by_label("Alternative", exact=True).select_option("far")
    row = of(found.table, 1, "far").row(0, named=True)
    assert f"lies {row['mean_total_variation']:.3f} away" in maps.inner_text()
    assert maps.locator("canvas").count() == 3
    assert visit.page.locator("#changes .chart svg").count() == 1
    visit.close()
