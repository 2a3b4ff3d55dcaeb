import polars as pl
import pytest

from helpers.visit import Visit, drawn
from identilens.report.table_report import Chart, TableView, save_table_figures, write_table_report

SCRIPT = "<script>alert(1)</script>"
RECORD = {"analysis": "dyck-pruning", "fingerprint": "0" * 64, "model": {"name": SCRIPT}, "texts": {"count": 1}}


@pytest.fixture(scope="module")
def view():
    table = pl.DataFrame({"size": [1, 4, 64], "error": [0.5, None, 1e-3], "held": [True, False, None]})
    lines = {SCRIPT: [(1, 0.5), (4, None), (0, 1.0), (64, 1e-3)], "other": [(1, 0.0), (4, 0.25), (64, float("nan"))]}
    chart = Chart("error", f"Error of {SCRIPT}", "size <b>", "error $x$", lines, log_x=True, log_y=True)
    flat = Chart("flat", "Flat", "size", "error", {"one": [(1, 0.0), (2, 3.0)]})
    return TableView("A table", SCRIPT, [f"Found {SCRIPT}."], table, [chart, flat], RECORD, [("1", SCRIPT)])


@pytest.fixture(scope="module")
def report(view, tmp_path_factory):
    return write_table_report(view, tmp_path_factory.mktemp("table") / "report.html")


def test_points_without_a_place_are_left_out(page):
    assert (drawn(page, "chart-0", "x", 0), drawn(page, "chart-0", "y", 0)) == ([1, 64], [0.5, 1e-3])
    assert (drawn(page, "chart-0", "x", 1), drawn(page, "chart-0", "y", 1)) == ([4], [0.25])
    assert drawn(page, "chart-1", "y", 0) == [0, 3]


def test_the_table_stands_as_it_is(page):
    rows = page.locator("#numbers tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [
        ["size", "error", "held"], ["1", "0.5", "yes"], ["4", "", "no"], ["64", "0.001", ""],
    ]  # fmt: skip
    assert "on 1 text, run" in page.inner_text(".citation")


def test_a_small_screen_has_no_sideways_scrolling(browser, report):
    opened = Visit(browser, report, device_scale_factor=2)
    assert opened.width_on_a_phone(390) <= 390
    assert opened.complaints == []
    opened.page.close()


def test_figures_are_equal_on_every_run(view, tmp_path):
    first = save_table_figures(view, tmp_path / "one", ("svg",))
    again = save_table_figures(view, tmp_path / "two", ("svg",))
    assert [path.name for path in first] == ["error.svg", "flat.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
