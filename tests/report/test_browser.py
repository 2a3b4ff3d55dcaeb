import re

import numpy as np
import polars as pl
import pytest

from helpers.visit import Visit
from identilens.report import write_audit_report

SCRIPT = "<script>alert(1)</script>"
PARTS = ("raw", "effective", "null")


@pytest.fixture(scope="module")
def report(mixed_audit, tmp_path_factory):
    return write_audit_report(mixed_audit, tmp_path_factory.mktemp("report") / "report.html")


class MapVisit(Visit):
    """A page with attention maps."""

    def choose(self, **choices):
        for name, value in choices.items():
            self.page.select_option(f"#view-{name}", str(value))

    def area(self, part):
        """Scroll to a map and return where it lies once scrolling has come to rest: scrolling hides the tooltip."""
        area = self.page.locator(f"#view-{part} .nsewdrag")
        area.scroll_into_view_if_needed()
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return area.bounding_box()

    def hover(self, part, row, column, shape):
        """Point at the middle of a cell and return the tooltip."""
        self.page.mouse.move(0, 0)
        self.page.wait_for_selector("#tooltip", state="hidden")
        box = self.area(part)
        x, y = box["x"] + box["width"] * (column + 0.5) / shape[1], box["y"] + box["height"] * (row + 0.5) / shape[0]
        self.page.mouse.move(x - 3, y)
        self.page.mouse.move(x, y)
        self.page.wait_for_selector("#tooltip:not([hidden])")
        return self.page.inner_text("#tooltip")


@pytest.fixture(scope="module")
def opened(browser, report):
    opened = MapVisit(browser, report)
    yield opened
    opened.page.close()


@pytest.fixture
def visit(opened, report):
    """The open page, as the tests before left it; each chooses all that it needs."""
    yield opened
    assert opened.requests == [report.as_uri()]
    assert opened.complaints == []


def number(text):
    return float(re.search(r": (\S+)", text.splitlines()[0]).group(1).replace("−", "-"))


def test_hovering_a_cell_reads_the_matrix(visit, mixed_audit):
    choices = {"text": 1, "kind": "cross", "layer": 1, "head": 2}
    visit.choose(**choices)
    for part in PARTS:
        matrix = mixed_audit.matrices[f"text1.layer1.head2.cross.{part}"].numpy()
        for row, column in ((0, 0), (2, 5), (1, 7)):
            shown = visit.hover(part, row, column, matrix.shape)
            queries, keys = mixed_audit.tokens[1]["decoder"], mixed_audit.tokens[1]["encoder"]
            assert shown.startswith(f"{queries[row]} → {keys[column]}: ")
            assert number(shown) == pytest.approx(matrix[row, column], rel=1e-2, abs=1e-6)


def test_switching_changes_the_maps(visit, mixed_audit):
    for text, kind, layer, head in (
        (0, "encoder", 0, 0),
        (0, "encoder", 1, 0),
        (0, "encoder", 1, 2),
        (0, "decoder", 1, 2),
    ):
        visit.choose(text=text, kind=kind, layer=layer, head=head)
        drawn = visit.page.evaluate("document.getElementById('view-effective').data[0].z.map((row) => Array.from(row))")
        expected = mixed_audit.matrices[f"text{text}.layer{layer}.head{head}.{kind}.effective"].numpy()
        np.testing.assert_allclose(drawn, expected, rtol=1e-3, atol=1e-6)
    row = mixed_audit.table.row(by_predicate=_is(0, 1, 2, "decoder"), named=True)
    facts = visit.page.inner_text("#view-facts")
    assert f"nullity {row['nullity']}" in facts
    assert f"{row['null_share']:.3f}" in facts
    assert f"{row['pearson']:.3f}" in facts


def _is(text, layer, head, kind):
    return (pl.col("text") == text) & (pl.col("layer") == layer) & (pl.col("head") == head) & (pl.col("kind") == kind)


def test_a_script_in_a_token_is_text(visit, mixed_audit):
    visit.choose(text=0, kind="encoder", layer=0, head=1)
    matrix = mixed_audit.matrices["text0.layer0.head1.encoder.raw"].numpy()
    assert visit.hover("raw", 0, 0, matrix.shape).startswith(f"{SCRIPT} → {SCRIPT}: ")
    ticks = visit.page.locator("#view-raw .xtick text").all_text_contents()
    assert ticks[0].startswith("<script>")
    assert ticks[4:8] == ["$x$", "_$", "&amp;", "<b>bold</b>"]
    assert SCRIPT in visit.page.locator("#types-legend").inner_text()
    assert SCRIPT in visit.page.locator(".subject").inner_text()
    assert visit.page.locator("#view-raw script, #types-legend script, .subject script").count() == 0


def test_cells_can_be_read_with_the_keyboard(visit, mixed_audit):
    page = visit.page
    visit.choose(text=1, kind="encoder", layer=0, head=0)
    page.focus("#view-query")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "view-key"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    words = page.inner_text("#view-cell")
    tokens = mixed_audit.tokens[1]["encoder"]
    assert words.startswith(f"{tokens[1]} → {tokens[2]}: raw ")
    found = [float(value.replace("−", "-")) for value in re.findall(r"(?:raw|effective|null) ([^,]+)", words)]
    expected = [
        float(mixed_audit.matrices[f"text1.layer0.head0.encoder.{part}"][1, 2]) for part in ("raw", "effective", "null")
    ]
    assert found == pytest.approx(expected, rel=1e-2, abs=1e-6)


def test_zooming_one_map_zooms_all(visit):
    page = visit.page
    visit.choose(text=0, kind="encoder", layer=0, head=0)
    assert page.locator("#view-whole").is_disabled()
    box = visit.area("raw")
    page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 0.1 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"], steps=4)
    page.mouse.up()
    page.wait_for_selector("#view-whole:enabled")
    ranges = "(parts) => parts.map((part) => document.getElementById(`view-${part}`).layout.xaxis.range)"
    zoomed = page.evaluate(ranges, PARTS)
    assert zoomed[0] == zoomed[1] == zoomed[2]
    assert zoomed[0][1] - zoomed[0][0] < 9
    page.click("#view-whole")
    assert page.evaluate(ranges, PARTS) == [[-0.5, 16.5]] * 3


def test_no_button_leads_outside(visit):
    titles = visit.page.evaluate("[...document.querySelectorAll('.modebar-btn')].map((button) => button.dataset.title)")
    assert set(titles) == {"Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}
    assert visit.page.locator("a[href]:not([href^='#'])").count() == 0


def test_buttons_zoom_all_maps(visit):
    page = visit.page
    visit.choose(text=0, kind="encoder", layer=0, head=0)
    page.locator("#view-null").hover()
    page.locator("#view-null .modebar-btn[data-title='Zoom in']").click()
    page.wait_for_selector("#view-whole:enabled")
    span = (
        "(part) => { const [from, to] = document.getElementById(`view-${part}`).layout.xaxis.range; return to - from; }"
    )
    assert {page.evaluate(span, part) for part in PARTS} == {8.5}
    page.click("#view-whole")
    assert page.evaluate(span, "raw") == 17


def test_scales_share_their_zero(visit):
    limits = "(part) => { const [map] = document.getElementById(`view-${part}`).data; return [map.zmin, map.zmax]; }"
    for scale in ("common", "root", "own"):
        visit.choose(scale=scale)
        found = [visit.page.evaluate(limits, part) for part in PARTS]
        assert all(low == -high for low, high in found)
        assert (len({high for _, high in found}) == 1) == (scale != "own")


def test_figures_follow_the_kind_and_the_legend(visit, mixed_audit):
    page = visit.page
    page.select_option("#heads-kind", "cross")
    shown = page.evaluate("document.getElementById('null-share-map').data[0].z")
    means = mixed_audit.by_head().filter(pl.col("kind") == "cross")["null_share"].to_numpy().reshape(2, 3)
    np.testing.assert_allclose(shown, means, rtol=1e-4)
    lines = "document.getElementById('received-raw').data.length"
    before = page.evaluate(lines)
    page.locator("#types-legend button").first.click()
    assert page.evaluate(lines) == before - 2
    page.select_option("#types-key", "2")
    assert page.inner_text("#pairs-raw-title") == f"Raw attention to {SCRIPT}"
    page.select_option("#length-kind", "decoder")
    assert page.evaluate("document.getElementById('length-plot').data[0].x.length") == 12


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, {"has_touch": True, "is_mobile": True}])
def test_a_phone_shows_the_page_without_scrolling_sideways(browser, report, options):
    opened = MapVisit(browser, report, **options)
    assert opened.width_on_a_phone() <= 400
    assert opened.page.locator("#failure").is_hidden()
    assert opened.complaints == []
    opened.page.close()


def test_one_token_and_no_matrices_open_without_complaint(browser, make_audit, plan, tmp_path):
    for keep in ([0], []):
        audit = make_audit([[plan(["x"], ["x"], layers=1, heads=1)]], keep=keep)
        opened = MapVisit(browser, write_audit_report(audit, tmp_path / f"{len(keep)}.html"))
        assert opened.complaints == []
        assert opened.page.locator("#failure").is_hidden()
        opened.page.close()
