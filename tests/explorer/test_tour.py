"""The explorer's tour: of one row, an exchange leaves the answer, a break of its strongest key changes it."""

import pytest

import identilens as idl
from helpers.serving import TOKEN, explorer
from identilens.demo.examples import STORY


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
    assert {"Model", "Text", "Layer 2, head 7", "What else can the map show?"} <= set(reached)
    assert not {"Raw", "Farthest"} & set(reached), "controls stand behind questions"
    assert reached[-1].startswith("Raw, layer 3, head 7: ")
    for key in ("Escape", "ArrowDown", "Enter"):
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
