"""Token identifiability as report and as figures: what is drawn, what is said, nothing of a name is run."""

from dataclasses import replace

import polars as pl
import pytest

from helpers import ratetables
from helpers.ratetables import SCRIPT
from helpers.visit import Visit
from identilens.errors import InputError, OutputFolderError
from identilens.report import save_figures, save_tokens_figures, write_report, write_tokens_report
from identilens.report.tokens_series import charts


def test_rates_by_layer():
    first, second, third = charts(ratetables.same_layer())
    assert [chart.group for chart in (first, second, third)] == ["rates", "rates", "train"]
    naive, linear = first.curves
    assert (naive.label, linear.label) == ("Naive look-up, cosine", "Linear probe, cosine")
    assert linear.x == [1, 2, 3]
    # Two folds 0.02 apart: their mean, and a standard error of 0.01.
    assert linear.y == pytest.approx([0.91, 0.86, 0.81])
    assert linear.errors == pytest.approx([0.01] * 3)
    assert first.chance == pytest.approx(0.1)
    assert second.curves[0].y == [0.9] * 3
    assert second.chance == pytest.approx(0.2)
    assert [(curve.label, curve.dashed) for curve in third.curves] == [
        ("Linear probe, cosine, test", False),
        ("Linear probe, cosine, training", True),
    ]


def test_across_layers_has_a_line_for_each_trained_layer():
    across = next(chart for chart in charts(ratetables.across_layers()) if chart.group == "across")
    assert across.name == "across_layers_linear_cosine"
    assert [curve.label for curve in across.curves] == [f"trained on layer {layer}" for layer in (1, 2, 3)]
    assert [curve.shade for curve in across.curves] == [0, 0.5, 1]
    assert across.curves[0].y == pytest.approx([0.91, 0.81, 0.71])
    rates = next(chart for chart in charts(ratetables.across_layers()) if chart.name == "rate_by_layer")
    assert rates.curves[0].y == pytest.approx([0.91] * 3)


def test_neighbours_are_blue_to_the_left_and_red_to_the_right():
    (chart,) = charts(ratetables.neighbours())
    assert [(curve.label, curve.tone) for curve in chart.curves] == [
        ("1 to the left", 0),
        ("2 to the left", 0),
        ("1 to the right", 1),
        ("2 to the right", 1),
    ]
    assert chart.curves[2].y == pytest.approx([0.51, 0.51])


def test_shares_and_checkpoints():
    (chart,) = charts(ratetables.shares())
    assert (chart.curves[0].x, chart.curves[0].y) == ([50, 100], pytest.approx([0.51, 0.61]))
    before, after = charts(ratetables.two_checkpoints())[0].curves
    assert (before.label, before.dashed) == ("Naive look-up, cosine (model)", True)
    assert (after.label, after.dashed) == ("Naive look-up, cosine (compared)", False)
    assert after.y == pytest.approx([0.61, 0.51])


@pytest.mark.parametrize("make", ["same_layer", "across_layers", "neighbours", "shares", "two_checkpoints"])
def test_every_experiment_is_summed_up_and_drawn(make, tmp_path):
    result = getattr(ratetables, make)()
    said = {
        "same_layer": "Linear probe, cosine: 91.0 % of the tokens recovered at layer 1, 81.0 % at layer 3.",
        "across_layers": "trained on 1, tested on 3: 71.0 %; trained on 3, tested on 1: 71.0 %",
        "neighbours": "16.0 % at -2, 41.0 % at -1, 51.0 % at +1, 26.0 % at +2",
        "shares": "recovered at layer 5: 51.0 % with 50 %, 61.0 % with 100 % of the training sentences",
        "two_checkpoints": "Naive look-up, cosine (compared): from each layer to the one below, 51.0 % to 61.0 %",
    }
    assert said[make] in result.summary()
    assert "Chance: 10.0 %. 2 folds" in result.summary()
    page = write_tokens_report(result, tmp_path / "report.html").read_text(encoding="utf-8")
    assert SCRIPT not in page
    drawn = save_tokens_figures(result, tmp_path / "a", ["svg"])
    assert {path.stem for path in drawn} == {chart.name for chart in charts(result)}
    again = save_tokens_figures(result, tmp_path / "b", ["svg"])
    assert all(path.read_bytes() == (tmp_path / "a" / path.name).read_bytes() for path in again)


def test_fewer_folds_of_one_probe_are_said():
    result = ratetables.same_layer()
    fewer = replace(result, table=result.table.filter((pl.col("probe") == "naive") | (pl.col("fold") == 0)))
    assert "Linear probe, cosine (on 1 of 2 folds): 90.0 %" in fewer.summary()
    assert "Naive look-up, cosine: 71.0 %" in fewer.summary()


def test_headline_is_the_last_layer():
    from identilens.report.tokens_report import _numbers

    assert _numbers(ratetables.same_layer())[0] == (
        "81.0 %",
        "recovered at layer 3 by the best probe (Linear probe, cosine)",
    )


def test_report_and_figures_of_a_folder(tmp_path):
    result = ratetables.same_layer()
    result.save(tmp_path / "run")
    assert write_report(tmp_path / "run") == tmp_path / "run" / "report.html"
    assert len(save_figures(tmp_path / "run", formats=["png"])) == 3
    assert result.to_html(tmp_path / "own.html").is_file()
    with pytest.raises(InputError, match="png, svg, pdf"):
        save_tokens_figures(result, tmp_path, ["gif"])
    (tmp_path / "file").write_text("precious")
    with pytest.raises(OutputFolderError):
        write_tokens_report(result, tmp_path / "file" / "report.html")


def test_in_a_browser_lines_are_drawn_stretched_and_hidden(browser, tmp_path):
    path = write_tokens_report(ratetables.same_layer(), tmp_path / "report.html")
    visit = Visit(browser, path)
    page = visit.page
    assert page.locator("#rate_by_layer .scatterlayer .trace").count() == 2
    top = "document.getElementById('rate_by_layer')._fullLayout.yaxis.range"
    assert page.evaluate(top) == [0, 1.03]
    page.check("#rates-stretch")
    low, high = page.evaluate(top)
    assert 0.2 < low < 0.31
    assert 0.91 < high < 1
    values = page.evaluate("document.getElementById('rate_by_layer').data[1].y")
    assert values == pytest.approx([0.91, 0.86, 0.81])
    assert page.locator("#table td").first.inner_text() == "Naive look-up, cosine"
    assert SCRIPT in page.inner_text(".subject")
    assert visit.complaints == []
    assert [url for url in visit.requests if not url.startswith("file:")] == []


def test_a_phone_shows_reports_without_scrolling_sideways(browser, tmp_path):
    for make in ("across_layers", "two_checkpoints"):
        path = write_tokens_report(getattr(ratetables, make)(), tmp_path / f"{make}.html")
        visit = Visit(browser, path, color_scheme="dark")
        assert visit.width_on_a_phone(390) <= 390
        assert visit.complaints == []
        visit.page.close()
