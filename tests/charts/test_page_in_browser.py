import pytest

from helpers.browsing import Visit
from helpers.pages import SCRIPT, TOKENS
from identilens.charts.page import render_page
from identilens.runs.files import write_text


@pytest.fixture(scope="module")
def path(tricky_page, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    write_text(path, render_page(tricky_page))
    return path


@pytest.fixture(params=[(1280, "light"), (390, "dark")], ids=["wide-light", "phone-dark"])
def visit(browser, path, request):
    opened = Visit(browser, path, *request.param)
    yield opened
    opened.close()


def test_every_chart_is_drawn_as_wide_as_its_box(visit):
    assert visit.page.locator(".chart[aria-label=Empty]").is_hidden()
    charts = visit.page.locator(".chart:visible").all()
    labels = [chart.get_attribute("aria-label") for chart in charts]
    assert labels == [f"Share {SCRIPT}", "Heads", "Points", "More", "Lines", "For print"]
    for chart in charts:
        drawn, box = chart.locator("svg").bounding_box(), chart.bounding_box()
        fits = 0.9 * box["width"] <= drawn["width"] <= box["width"] + 1
        # Maps for print have a width of their own, and scroll in their box.
        assert drawn["width"] > 400 if chart.get_attribute("aria-label") == "For print" else fits
    colors = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colors == (
        "rgb(20, 24, 28)" if visit.page.viewport_size["width"] == 390 else "rgb(255, 255, 255)"
    )


def test_a_drop_down_changes_what_a_chart_shows_and_outlives_the_look(visit):
    def numbers():
        return visit.page.locator("#heads-0 .mark-text.role-mark text").all_text_contents()

    before = numbers()
    visit.page.locator("#heads-0-controls").get_by_label("Attention").select_option("decoder")
    visit.page.wait_for_function(
        "first => document.querySelector('#heads-0 .mark-text.role-mark text').textContent !== first",
        arg=before[0],
    )
    after = numbers()
    assert len(before) == len(after) == 12
    assert before != after
    other = "dark" if visit.page.viewport_size["width"] == 1280 else "light"
    visit.page.emulate_media(color_scheme=other)
    visit.page.wait_for_selector(f"body[data-drawn={other}]")
    assert numbers() == after
    assert (
        visit.page.locator("#heads-0-controls")
        .get_by_label("Attention")
        .locator(":checked")
        .inner_text()
        == "decoder"
    )


def test_a_map_is_read_cell_by_cell_by_pointer_and_keyboard(visit, maps):
    raw, effective = maps[1].layers["raw"], maps[1].layers["effective"]
    visit.choose("Head", "1")
    visit.layer("effective").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        visit.page.keyboard.press(key)
    text = visit.read()
    assert text.startswith(f"{TOKENS[1]} (query 1) → {TOKENS[1]} (key 1): ")
    shown = float(text.split("effective ")[1].replace("−", "-"))
    assert shown == pytest.approx(float(effective[1, 1]), abs=2e-3)
    box = visit.layer("null").bounding_box()
    visit.layer("null").hover(position={"x": box["width"] - 12, "y": box["height"] / 2})
    text = visit.read()
    assert f"→ {TOKENS[-1]} (key {len(TOKENS) - 1})" in text
    query = int(text.split("(query ")[1].split(")")[0])
    shown = float(text.split("null ")[1].replace("−", "-"))
    assert shown == pytest.approx(float((raw - effective)[query, -1]), abs=3e-3)


def test_layers_stand_side_by_side_or_alone_and_scales_change_the_picture(visit):
    def pictures():
        return visit.page.evaluate(
            "[...document.querySelectorAll('#maps .maps canvas')].map((one) => one.toDataURL())"
        )

    assert len(pictures()) == 1
    visit.page.get_by_role("button", name="Side by side").click()
    visit.page.wait_for_selector("#maps canvas[data-layer=effective]")
    visit.page.locator("#maps .segment [data-layer=null]").click()
    visit.page.wait_for_selector("#maps canvas[data-layer=null]")
    rooted = pictures()
    assert len(rooted) == 3
    visit.choose("Colours", "linear")
    linear = pictures()
    visit.choose("Scale", "common")
    common = pictures()
    assert all(one != other for one, other in zip(rooted, linear, strict=True))
    assert linear[2] != common[2]
    label = visit.page.locator("#maps canvas[data-layer=null]").get_attribute("aria-label")
    assert label.startswith("Null, layer 0, head 0: 12 × 12 tokens; largest ")
