import numpy as np
import polars as pl
import pytest
import torch

from helpers.structures import structure_of
from helpers.visit import Visit, drawn
from identilens.measures.structure import structure_weights
from identilens.report import write_structure_report


@pytest.fixture(scope="module")
def report(structure_result, tmp_path_factory):
    return write_structure_report(structure_result, tmp_path_factory.mktemp("structure") / "report.html")


def slide(page, step):
    page.evaluate(
        "step => { const slider = document.getElementById('maps-threshold'); slider.value = step; "
        "slider.dispatchEvent(new Event('input')); }",
        step,
    )


def wanted(result, layer, head, threshold, name="raw"):
    # The page holds weights in half precision.
    mean = result.mean_weights(layer, head, name=name).half().double()
    return structure_weights(mean, threshold).numpy()


def choose(page, layer, head):
    page.click(f"#maps-grid button[aria-label='encoder layer {layer}, head {head}']")


def test_opens_at_the_threshold_of_the_run(page, structure_result):
    assert page.locator("#maps-grid canvas").count() == len(structure_result.table)
    choose(page, 0, 0)
    found = np.array(drawn(page, "maps-plot"), dtype=float)
    np.testing.assert_allclose(found, wanted(structure_result, 0, 0, structure_result.threshold), atol=1e-4)
    assert "l = 0.1667 (2 times uniform)" in page.inner_text("#maps-value")


@pytest.mark.parametrize(("step", "threshold"), [(0, 0.0), (30, 0.09), (50, 0.25), (100, 1.0)])
def test_the_slider_cuts_and_normalises(page, structure_result, step, threshold):
    page.select_option("#maps-weights", "raw")
    page.select_option("#maps-over", "")
    slide(page, step)
    choose(page, 1, 2)
    expected = wanted(structure_result, 1, 2, threshold)
    np.testing.assert_allclose(np.array(drawn(page, "maps-plot"), dtype=float), expected, atol=1e-4)
    means = torch.stack([structure_result.mean_weights(layer, head) for layer in (0, 1) for head in range(4)])
    kept = 100 * float((means.half() >= threshold).double().mean())
    told = page.inner_text("#maps-summary")
    assert f"{float(f'{kept:.2g}'):g} % of all entries are kept" in told


def test_effective_and_all_texts_can_be_chosen(page, structure_result):
    slide(page, 20)
    choose(page, 0, 3)
    for weights, over, name in (("effective", "", "effective"), ("effective", "all_", "all_effective"),
                                ("raw", "all_", "all_raw")):  # fmt: skip
        page.select_option("#maps-weights", weights)
        page.select_option("#maps-over", over)
        found = np.array(drawn(page, "maps-plot"), dtype=float)
        np.testing.assert_allclose(found, wanted(structure_result, 0, 3, 0.04, name), atol=1e-4)


def test_the_small_maps_are_painted_anew(page):
    page.select_option("#maps-weights", "raw")
    page.select_option("#maps-over", "")

    def picture():
        return page.evaluate("document.querySelector('#maps-grid canvas').toDataURL()")

    slide(page, 0)
    before = picture()
    slide(page, 60)
    assert picture() != before
    assert page.locator("#maps-grid button[aria-pressed='true']").count() == 1


def test_the_keyboard_moves_the_slider(page):
    slide(page, 40)
    page.focus("#maps-threshold")
    page.keyboard.press("ArrowRight")
    assert page.input_value("#maps-threshold") == "41"
    assert "l = 0.1681" in page.inner_text("#maps-value")


def test_r_by_head_and_as_a_mean(page, structure_result):
    growth = structure_result.growth
    page.select_option("#subspace-head", "encoder.1.2")
    one = growth.filter(layer=1, head=2)
    assert drawn(page, "subspace-growth", "x") == one["texts"].to_list()
    assert drawn(page, "subspace-growth", "y") == one["dim_r"].to_list()
    page.select_option("#subspace-head", "")
    means = [rows["dim_r"].mean() for _, rows in growth.group_by("texts", maintain_order=True)]
    assert drawn(page, "subspace-growth", "y") == pytest.approx(means)
    one = (
        structure_result.visibility_by_position()
        .group_by("position", maintain_order=True)
        .agg(pl.col("visibility").mean())
    )
    assert drawn(page, "subspace-positions", "y") == pytest.approx(one["visibility"].to_list(), abs=1e-3)
    assert "On average T has rank 8 of 12" in page.inner_text("#subspace-texts")


def test_patterns_and_stability_are_drawn(page, structure_result):
    page.select_option("#patterns-weights", "effective")
    rows = structure_result.patterns.filter(weights="effective")
    found = np.array(drawn(page, "patterns-plot"), dtype=float)
    assert found.shape == (7, 8)
    np.testing.assert_allclose(found.T.ravel(), rows["score"], atol=1e-3)
    assert drawn(page, "stability-plot", "x") == structure_result.stability["clusters"].unique().sort().to_list()
    assert "not under the second in 100 % of the cases" in page.inner_text("#classes-facts")


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, {"has_touch": True, "is_mobile": True}])
def test_a_phone_shows_the_page_without_scrolling_sideways(browser, report, options):
    opened = Visit(browser, report, **options)
    assert opened.width_on_a_phone() <= 400
    assert opened.complaints == []
    opened.page.close()


def test_decoders_and_empty_tables_open_without_complaint(browser, tmp_path):
    for family, budget in (("gpt2", 10**7), ("bert", 1)):
        result = structure_of(pairs=0, perturbed=0, family=family, count=4)
        opened = Visit(browser, write_structure_report(result, tmp_path / f"{family}.html", budget=budget))
        assert opened.complaints == []
        assert opened.page.locator("#failure").is_hidden()
        opened.page.close()
