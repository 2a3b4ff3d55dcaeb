"""What an audit's charts and report show: the numbers of its tables, and tokens as they are."""

import re

import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.audits import SCRIPT, Plan, made_audit, mixed_audit, words
from helpers.browsing import Visit
from identilens.studies.audit.maps import fitting_maps, kept_maps


@pytest.fixture(scope="module")
def mixed():
    return mixed_audit()


@pytest.fixture(scope="module")
def small():
    return made_audit([[Plan(words(n), words(n))] for n in (3, 7, 12)], keep=[0, 2])


@pytest.fixture(scope="module")
def report(mixed, tmp_path_factory):
    return mixed.to_html(tmp_path_factory.mktemp("report") / "new" / "report.html")


def test_the_report_asks_for_nothing_and_runs_no_token(report):
    page = report.read_text("utf-8")
    assert SCRIPT not in page
    written = re.sub(r"<script[^>]*>.*?</script>", "<script>", page, flags=re.DOTALL)
    assert written.count("<script") == 4
    assert not re.search(r'(?:src|href|action)="(?!#|data:)', written)


def test_what_does_not_fit_leaves_out_whole_layers_and_is_said_beside_the_maps(monkeypatch):
    audit = made_audit([[Plan(words(20), words(20))], [Plan(words(6), words(6))]], keep=[0, 1])
    kept = kept_maps(audit.table, audit.matrices)
    budget = int((10 * (6 * 36 + 3 * 400) + 12 * 4 * (6 * 6 + 3 * 20)) / 6) + 1
    shown = fitting_maps(kept, budget)
    assert shown.select("text", "layer", "head").rows() == [(0, 0, 0), (0, 0, 1), (0, 0, 2)]
    assert fitting_maps(kept, 10).is_empty()
    assert fitting_maps(kept).equals(kept)
    monkeypatch.setattr(
        "identilens.studies.audit.result.fitting_maps", lambda held: fitting_maps(held, budget)
    )
    [section] = [one for one in audit.sections() if one.anchor == "maps"]
    assert len(section.maps) == 3
    assert "saved 12 maps. To keep this file small, it shows 3" in section.text[1]


def test_a_click_on_a_head_in_a_chart_opens_its_map(browser, report):
    visit = Visit(browser, report)
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
