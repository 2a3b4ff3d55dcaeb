"""Intervals and alternatives as pages of their own, and joined to the report of the audit they belong to."""

from dataclasses import replace

import polars as pl
import pytest
import torch

import identilens as idl
from helpers import zoo
from helpers.visit import Visit
from identilens.report import save_alternatives_figures, save_intervals_figures, write_report

SCRIPT = "<script>alert(1)</script>"
IDS = {"input_ids": torch.arange(5, 29)[None]}


@pytest.fixture(scope="module")
def lens():
    return idl.Lens(zoo.build("gpt2"))


@pytest.fixture(scope="module")
def intervals(lens):
    found = idl.intervals(lens, IDS, layers=1, heads=[0, 1])
    hostile = pl.when(pl.col("position") == 3).then(pl.lit(SCRIPT)).otherwise(pl.col("token"))
    return replace(found, tokens=found.tokens.with_columns(hostile.alias("token")))


@pytest.fixture(scope="module")
def alternatives(lens):
    found = idl.alternatives(lens, IDS, layers=1, heads=[0, 1], realisable=True, starts=1)
    tokens = {text: {"encoder": [SCRIPT, *held["encoder"][1:]]} for text, held in found.tokens.items()}
    return replace(found, tokens=tokens)


@pytest.fixture(scope="module")
def folder(lens, intervals, alternatives, tmp_path_factory):
    """An audit of two texts, of which the studies saw the second one only."""
    path = tmp_path_factory.mktemp("joined") / "run"
    other = idl.intervals(lens, {"input_ids": torch.arange(40, 52)[None]}, layers=0, heads=0, queries=[5, 11])
    idl.audit(lens, [list(range(30, 40)), list(range(5, 29))], out=path)
    intervals.save(path / "intervals-1")
    other.save(path / "intervals-2")
    alternatives.save(path / "alternatives-1")
    return path


@pytest.fixture(scope="module")
def opened(browser, folder):
    report = write_report(folder)
    opened = Visit(browser, report)
    yield opened
    assert opened.requests == [report.as_uri()]
    assert opened.complaints == []
    opened.page.close()


def chosen(page, prefix, **choices):
    for name, value in choices.items():
        page.select_option(f"#{prefix}-{name}", str(value))


def test_texts_of_the_audit_keep_their_numbers(opened):
    held = opened.page.evaluate("Page.data.intervals.rows.map((row) => row.text)")
    assert set(held) == {1, 2}, "the audit's second text, and one that it does not hold"
    assert set(opened.page.evaluate("Page.data.alternatives.maps.map((map) => map.text)")) == {1}


def test_intervals_follow_the_selectors_and_tell_the_certain_order(opened, intervals):
    page = opened.page
    chosen(page, "intervals", text=1, layer=1, head=1, query=20, sort="position")
    rows = intervals.table.filter((pl.col("head") == 1) & (pl.col("query") == 20)).sort("key")
    bars, dots = (page.evaluate(f"document.getElementById('intervals-plot').data[{trace}]") for trace in (0, 1))
    assert bars["base"] == pytest.approx(rows["lo"].to_list(), rel=1e-4)
    assert bars["x"] == pytest.approx((rows["hi"] - rows["lo"]).to_list(), abs=1e-4)
    assert dots["x"] == pytest.approx(rows["weight"].to_list(), rel=1e-4)
    order = intervals.order.filter((pl.col("head") == 1) & (pl.col("query") == 20))
    key = order["above"].mode()[0]
    chosen(page, "intervals", key=key)
    below = page.inner_text("#intervals-order").split("Certainly below it: ")[1]
    for other in order.filter(pl.col("above") == key)["below"]:
        assert f"({other})" in below
    chosen(page, "intervals", sort="weight")
    weights = page.evaluate("document.getElementById('intervals-plot').data[1].x")
    assert weights == sorted(weights, reverse=True)


def test_alternatives_show_what_was_measured(opened, alternatives):
    page = opened.page
    row = alternatives.table.filter((pl.col("head") == 0) & (pl.col("alternative") == "far")).row(0, named=True)
    chosen(page, "alt", head=0, which="far")
    z = page.evaluate("Array.from(document.getElementById('alt-alternative').data[0].z, (row) => Array.from(row))")
    expected = alternatives.matrices["text0.layer1.head0.decoder.alternative_far"]
    assert torch.allclose(torch.tensor(z), expected.float(), atol=1e-3)
    assert f"lies {row['mean_total_variation']:.3f} away" in page.inner_text("#alt-facts")
    changes = page.evaluate("document.getElementById('alt-changes').data[0].customdata")
    here = (pl.col("head") == 0) & (pl.col("alternative") == "far") & pl.col("state_layer").is_not_null()
    assert changes == pytest.approx(alternatives.changes.filter(here)["relative_change"].to_list())
    assert page.locator("#alternatives table.means tr").count() == 1 + len(alternatives.table)


def test_tokens_stay_text(opened):
    page = opened.page
    chosen(page, "intervals", text=1, head=0, query=20)
    assert SCRIPT in page.inner_text("#intervals-key")
    assert SCRIPT in page.inner_text("#alt-query")
    assert page.evaluate("document.querySelectorAll('script:not([type])').length") == len(
        page.evaluate("Array.from(document.scripts).filter((one) => !one.type).map((one) => one.textContent.length)")
    )
    assert opened.complaints == []


@pytest.mark.parametrize("kind", ["intervals", "alternatives"])
def test_a_page_of_its_own(browser, request, tmp_path, kind):
    visit = Visit(browser, request.getfixturevalue(kind).to_html(tmp_path / "page.html"))
    assert visit.page.locator("#finding .finding").count() >= 2
    assert visit.complaints == []
    visit.page.close()


def test_paper_figures(intervals, alternatives, tmp_path):
    names = {path.name for path in save_intervals_figures(intervals, tmp_path, ("png",))}
    assert {"widths_text0_layer1_head0_decoder.png", "widths_text0_layer1_head1_decoder.png"} <= names
    assert sum(name.startswith("intervals_text0") for name in names) == 12
    names = {path.name for path in save_alternatives_figures(alternatives, tmp_path, ("svg",))}
    assert {"distance_and_change.svg", "maps_text0_layer1_head0_decoder_far.svg"} <= names
    assert all((tmp_path / name).stat().st_size > 3000 for name in names)
