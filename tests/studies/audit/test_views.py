"""What an audit's charts and report show: the numbers of its tables, and tokens as they are."""

import json
import re

import altair as alt
import polars as pl
import pytest

import identilens as idl
from helpers.browsing import Visit
from helpers.pages import SCRIPT
from helpers.zoo import build, ids
from identilens.charts.kit import choose, lines
from identilens.studies.audit.maps import fitting_maps, kept_maps


@pytest.fixture(scope="module")
def small():
    return idl.audit(idl.Lens(build("bert")), [ids(20), ids(6, 1)], examples=2)


def test_what_does_not_fit_is_said_beside_the_maps(small, monkeypatch):
    kept = kept_maps(small.table, small.matrices)
    assert fitting_maps(kept).equals(kept)
    budget = next(size for size in range(10**6) if len(fitting_maps(kept, size)))
    assert fitting_maps(kept, budget).select("layer", "head").rows() == [(0, 0)]
    monkeypatch.setattr(
        "identilens.studies.audit.result.fitting_maps", lambda held: fitting_maps(held, budget)
    )
    [section] = [one for one in small.sections() if one.anchor == "maps"]
    assert len(section.maps) == 1
    assert "saved 16 maps. To keep this file small, it shows the first 1." in section.text[1]


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
    visit = Visit(browser, result.to_html(tmp_path / "report.html"), width, scheme)
    visit.page.wait_for_selector("#maps .viewer-heads[data-drawn]")
    assert visit.page.locator("#maps .viewer-heads canvas").count() == 12
    for chart in visit.page.locator(".chart").all():
        assert chart.locator("svg").bounding_box()["width"] <= chart.bounding_box()["width"] + 1
    visit.close()


@pytest.fixture(scope="module")
def shown():
    lens = idl.Lens(build("bert"), name=SCRIPT)
    return idl.audit(lens, [ids(20)], examples=1)._repr_html_()


def test_an_audit_shows_itself(shown):
    assert shown.startswith("<p>Certain: ")
    assert SCRIPT not in shown
    assert shown.count("<details>") == shown.count("<iframe srcdoc=") == 1
    assert not re.search(r'(?:src|href)="(?!data:)', shown)


def test_the_viewer_runs_inside_an_output(browser, shown, tmp_path):
    path = tmp_path / "notebook.html"
    path.write_text(
        f"<body data-drawn><p id='failure' hidden></p>{shown}<div id='maps'></div>",
        encoding="utf-8",
    )
    visit = Visit(browser, path)
    visit.page.locator("summary", has_text="Maps: open").click()
    frame = visit.page.frame_locator("iframe")
    frame.locator(".viewer[data-ready]").wait_for()
    assert frame.locator(".viewer-title").inner_text().startswith("Layer ")
    frame.locator(".maps canvas").first.click()
    assert frame.locator(".viewer-row").is_visible()
    visit.requests[:] = [one for one in visit.requests if one != "about:srcdoc"]
    visit.close()


VS_CODE = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' https: http: data:; font-src 'self' https:; connect-src https:; child-src https: data:"
)
"""The policy of VS Code's notebook outputs (notebook.experimental.enableCsp)."""


@pytest.fixture
def chart():
    frame = pl.DataFrame(
        {"n": [1, 2, 1, 2], "share": [0.1, 0.4, 0.9, 0.5], "of": [SCRIPT, SCRIPT, "b", "b"]}
    )
    return choose(lines(frame, "n", "share", title=f"Shares {SCRIPT}"), frame, "of", "Of")


def test_outputs_need_no_network_and_nothing_that_vs_code_forbids(browser, shown, chart, tmp_path):
    """Both are put in as notebooks do it: markup set into a page that has a policy of its own."""
    path = tmp_path / "notebook.html"
    outputs = json.dumps(shown + chart._repr_mimebundle_()["text/html"]).replace("</", "<\\/")
    path.write_text(
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{VS_CODE}"><body data-drawn>'
        f'<p id="failure" hidden></p><div id="maps"></div><script>document.getElementById("maps").innerHTML = {outputs}'
        "</script>",
        encoding="utf-8",
    )
    visit = Visit(browser, path)
    visit.page.locator("summary").click()
    visit.page.frame_locator("iframe >> nth=0").locator(".viewer[data-ready]").wait_for()
    frame = visit.page.frame_locator("iframe >> nth=1")
    frame.locator("body[data-drawn] .chart svg").wait_for()
    assert frame.locator("h3").inner_text() == f"Shares {SCRIPT}"
    frame.get_by_label("Of").select_option(label="b")
    for one in visit.page.locator("iframe").all():
        inside = one.content_frame.locator("body").evaluate(
            "body => body.getBoundingClientRect().height"
        )
        visit.page.wait_for_timeout(100)
        assert abs(one.bounding_box()["height"] - inside) < 20
    visit.requests[:] = [one for one in visit.requests if one != "about:srcdoc"]
    visit.close()


def test_a_chart_is_shown_by_another_renderer_where_one_is_chosen(chart):
    with alt.renderers.enable("json"):
        assert list(chart._repr_mimebundle_()[0]) == ["application/json", "text/plain"]
    assert list(chart.properties(title="Again")._repr_mimebundle_()) == ["text/html"]
