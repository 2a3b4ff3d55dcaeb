"""What an audit's charts and report show: the numbers of its tables, and tokens as they are."""

import re

import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.browsing import Visit
from helpers.pages import SCRIPT
from helpers.zoo import build, ids
from identilens.studies.audit.maps import fitting_maps, kept_maps


@pytest.fixture(scope="module")
def small():
    return idl.audit(idl.Lens(build("bert")), [ids(20), ids(6, 1)], examples=2)


def test_what_does_not_fit_leaves_out_whole_layers_and_is_said_beside_the_maps(small, monkeypatch):
    kept = kept_maps(small.table, small.matrices)
    assert fitting_maps(kept).equals(kept)
    budget = next(size for size in range(10**6) if len(fitting_maps(kept, size)))
    assert fitting_maps(kept, budget).select("layer", "head").rows() == [(0, at) for at in range(4)]
    monkeypatch.setattr(
        "identilens.studies.audit.result.fitting_maps", lambda held: fitting_maps(held, budget)
    )
    [section] = [one for one in small.sections() if one.anchor == "maps"]
    assert len(section.maps) == 4
    assert "saved 16 maps. To keep this file small, it shows 4" in section.text[1]


def test_a_click_on_a_head_in_a_chart_opens_its_map(browser, small, tmp_path):
    visit = Visit(browser, small.to_html(tmp_path / "new" / "report.html"))
    cell = visit.page.locator("#measures-0 .mark-rect path").nth(4)
    layer, head = (
        re.search(rf"{name}: (\d+)", cell.get_attribute("aria-label"))[1]
        for name in ("Layer", "Head")
    )
    cell.click(force=True)
    opened = visit.page.locator(f"#maps .viewer-title:text-is('Layer {layer}, head {head}')")
    opened.wait_for()
    assert opened.is_visible()
    visit.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_report_of_a_real_model_opens(browser, bundled, tmp_path, width, scheme):
    text = f"The old bridge was closed in winter, and nobody crossed the river {SCRIPT} until spring came."
    result = idl.audit(bundled, [text], layers=(1,))
    assert len(result.matrices) == 36, "raw, effective and values of each head"
    assert_close(
        result.matrices["text0.layer1.head0.encoder.raw"].sum(-1),
        torch.ones(result.table["n_query"][0]),
    )
    visit = Visit(browser, result.to_html(tmp_path / "report.html"), width, scheme)
    visit.page.wait_for_selector("#maps .viewer-heads[data-drawn]")
    assert visit.page.locator("#maps .viewer-heads canvas").count() == 12
    for chart in visit.page.locator(".chart").all():
        assert chart.locator("svg").bounding_box()["width"] <= chart.bounding_box()["width"] + 1
    visit.close()
