"""What a notebook shows of an audit: finding, small heads and the viewer, all inside the output."""

import re
from html import unescape

import pytest

from helpers.audits import SCRIPT, Plan, made_audit, mixed_audit, words
from helpers.browsing import Visit
from identilens.errors import InputError


@pytest.fixture(scope="module")
def shown():
    return mixed_audit()._repr_html_()


def test_an_audit_shows_itself(shown):
    assert shown.startswith("<p>Determined: ")
    assert SCRIPT not in shown
    assert re.search(r'<img alt="All heads[^"]*" src="data:image/png;base64,', shown)
    assert shown.count("<details>") == shown.count("<iframe srcdoc=") == 1
    assert not re.search(r'(?:src|href)="(?!data:)', shown)


def test_the_viewer_runs_inside_an_output(browser, shown, tmp_path):
    path = tmp_path / "notebook.html"
    path.write_text(f"<body data-drawn><p id='failure' hidden></p>{shown}<div id='maps'></div>", encoding="utf-8")
    visit = Visit(browser, path)
    visit.page.locator("summary", has_text="Maps of text 0").click()
    frame = visit.page.frame_locator("iframe")
    frame.locator(".viewer[data-ready]").wait_for()
    assert frame.locator(".viewer-title").inner_text().startswith("Layer ")
    frame.locator(".maps canvas").first.click()
    assert frame.locator(".viewer-row").is_visible()
    visit.requests[:] = [one for one in visit.requests if one != "about:srcdoc"]
    visit.close()


def test_a_view_opens_at_its_head(tmp_path):
    audit = made_audit([[Plan(words(5), words(5))], [Plan(words(6), words(6))]], keep=[1])
    view = audit.view(1, layer=1, head=2)
    assert view.maps[view.opened].choices["head"] == 2
    assert {one.choices["text"][0] for one in view.maps} == {"1"}
    assert "tokenMaps" in view.to_html(tmp_path / "maps.html").read_text("utf-8")
    assert unescape(view._repr_html_()).count("<html") == 1
    with pytest.raises(InputError, match="text 0, layer 1, head 2 was not saved"):
        audit.view(0, 1, 2)
