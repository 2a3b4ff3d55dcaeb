"""The explorer's tour: of one row, an exchange leaves the answer, a break of its strongest key changes it."""

import re

import pytest

import identilens as idl
from helpers.serving import TOKEN, explorer
from identilens.demo.examples import STORY

LAST_ROW_SEEN = """() => {
  const place = (one) => document.querySelector(one).getBoundingClientRect();
  const [map, bar] = [place("#maps-0 .maps canvas"), place(".lesson .bar")];
  return bar.bottom < map.bottom && map.bottom < window.innerHeight;
}"""


@pytest.fixture(scope="module")
def address():
    with explorer({"bundled-decoder": idl.load("bundled-decoder")}, [STORY]) as running:
        yield running


@pytest.fixture
def page(browser, address):
    """The page on a phone, where results go out of sight first."""
    opened = browser.new_page(viewport={"width": 390, "height": 844})
    complaints = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(f"{address}/#token={TOKEN}")
    opened.wait_for_selector("#maps-0[data-all]")
    yield opened
    assert complaints == []
    width = opened.viewport_size["width"]
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    opened.close()


def pressed(page, name, words):
    """Go to a step of the tour by keys, and return once it says its words."""
    page.get_by_role("button", name=name).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(f"#step:has-text('{words}')")


def in_view(page, selector):
    """Return whether the top of what stands there can be seen."""
    return 0 <= page.locator(selector).first.bounding_box()["y"] < page.viewport_size["height"]


def numbers(line):
    """Return the first number of each cell of a line of the table, where there is one."""
    cells = line.locator("td").all_inner_texts()
    return [float(re.match(r"[0-9.e−-]*", one)[0].replace("−", "-") or "nan") for one in cells]


def test_an_exchange_leaves_the_answer_and_a_break_changes_it_in_one_table(page):
    assert page.inner_text("#maps-0 .viewer-title") == "Layer 2, head 7"
    assert "With them the model's answer stays" in page.inner_text("#lesson")
    pressed(page, "1 Look", "Layer 2, head 7 is open")
    pressed(page, "2 Click", "A row is locked")
    page.wait_for_selector("#maps-0 .viewer-row[data-proven=true][data-ready=true]")
    first = page.locator("#maps-0 .row-keys tr[data-key]").first
    assert first.get_attribute("data-key") == "16", "opened"
    assert float(first.get_attribute("data-lo")) < 0.1
    page.wait_for_function(LAST_ROW_SEEN)
    assert in_view(page, "#maps-0 .row-keys tr[data-key]")
    assert page.locator("#maps-0 .row-keys tr[data-key]").count() == 8
    page.get_by_role("button", name="Exchange or break it").click()
    assert in_view(page, ".pane > .tools")
    pressed(page, "3 Exchange", "chosen to keep the answer")
    assert in_view(page, ".found")
    own, other = (
        line.locator("span").all() for line in page.locator(".found .viewer-text .tokens").all()
    )
    shades = [tokens[16].get_attribute("title").split(": ")[1] for tokens in (own, other)]
    assert float(shades[0]) > 0.8
    assert float(shades[1]) < 0.1
    pressed(page, "4 Break", "“opened” was taken out of the row")
    assert "0 lies in its range, but a range holds only if" in page.inner_text("#step")
    broken = page.locator(".found .viewer-text .tokens").nth(1).locator("span").nth(16)
    assert broken.get_attribute("title").split(": ")[1] == "0"
    assert page.locator("#maps-0 canvas[data-layer='changed row']").count() == 1
    assert in_view(page, ".found .wide")
    lines = page.locator(".found .wide >> nth=0").locator("tbody tr").all()
    assert [line.locator("th").inner_text().split(":")[0] for line in lines] == [
        "The model as it is",
        "Exchange",
        "Break",
    ]
    _, (_, kept, output, *_), (_, changed, all_of_it, *_) = map(numbers, lines)
    assert 1 < output < all_of_it
    assert kept == 0.00098, "as in the story of the documentation"
    assert changed > 20 * kept
    before, exchanged, broken = (numbers(line)[3] for line in lines)
    assert abs(broken - before) > 4 * abs(exchanged - before)
    cells = [line.locator("td").first for line in lines]
    assert [one.inner_text()[:7] for one in cells] == ["“first”", "“first”", "“father"]
    likely = cells[-1].bounding_box()
    assert likely["x"] + likely["width"] < page.viewport_size["width"], "without scrolling sideways"


def test_everything_is_reached_by_keys(page):
    """Tab from the start: text, tools, heads, layers, map; a row is locked, a key chosen, its weight moved."""
    page.locator("#columns").focus()
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.ariaLabel || document.activeElement.textContent")
        )
        if page.evaluate("document.activeElement.matches('#maps-0 .maps canvas')"):
            break
        if reached[-1] == "Layer 2, head 7":
            page.keyboard.press("ArrowDown")
            page.wait_for_selector("#maps-0 .viewer-title:text-is('Layer 3, head 7')")
    assert {
        "Model",
        "Text",
        "Layer 2, head 7",
        "Raw",
    } <= set(reached)
    assert "Farthest" not in reached, "no other weights give this output"
    assert reached[-1].startswith("Raw, layer 3, head 7: ")
    for key in ("ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#maps-0 .viewer-row[data-proven=true]")
    for _ in range(7):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.key')"):
            break
    page.keyboard.press("Enter")
    page.wait_for_selector(".hand input:focus")
    page.keyboard.press("Escape")
    page.wait_for_selector(".row-keys .key:focus")
    page.keyboard.press("Escape")
    page.wait_for_selector("#maps-0 .maps canvas:focus")
    assert page.locator("#maps-0 .viewer-row").is_hidden()
