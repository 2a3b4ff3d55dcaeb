"""What a notebook shows of an audit: finding, small heads and the viewer, all inside the output."""

import json
import re

import altair as alt
import polars as pl
import pytest

from helpers.browsing import Visit
from helpers.pages import SCRIPT
from helpers.written import audited
from identilens.charts.kit import choose, lines


@pytest.fixture(scope="module")
def shown():
    return audited(model={"name": SCRIPT})._repr_html_()


def test_an_audit_shows_itself(shown):
    assert shown.startswith("<p>Certain: ")
    assert SCRIPT not in shown
    assert re.search(r'<img alt="All heads[^"]*" src="data:image/png;base64,', shown)
    assert shown.count("<details>") == shown.count("<iframe srcdoc=") == 1
    assert not re.search(r'(?:src|href)="(?!data:)', shown)


def test_the_viewer_runs_inside_an_output(browser, shown, tmp_path):
    path = tmp_path / "notebook.html"
    path.write_text(
        f"<body data-drawn><p id='failure' hidden></p>{shown}<div id='maps'></div>",
        encoding="utf-8",
    )
    visit = Visit(browser, path)
    visit.page.locator("summary", has_text="Maps of text 0").click()
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
    return choose(lines(frame, "n", "share", title=f"Shares {SCRIPT}"), "of", "Of", [SCRIPT, "b"])


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
