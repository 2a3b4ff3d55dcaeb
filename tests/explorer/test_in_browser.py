"""The explorer as a person uses it: a text is measured as it is typed, a click proves a row, two pages stay apart."""

from time import sleep

import pytest
import torch
from transformers import BertConfig, BertModel

import identilens as idl
from helpers.serving import TOKEN, explorer
from identilens.demo.examples import STORY
from identilens.explorer.work import broken_row, measured

SCRIPT = "<script>alert(1)</script>"
TEXT = (
    "The engine had run without a pause for eleven days when the noise began, and the second engineer put it down to "
    f"a loose plate somewhere above the shaft {SCRIPT} until it grew regular."
)


@pytest.fixture(scope="module")
def small(bundled, tmp_path_factory):
    """A small encoder in a folder, with a tokenizer for words."""
    folder = tmp_path_factory.mktemp("models") / "small"
    sizes = {
        "hidden_size": 48, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    }  # fmt: skip
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(bundled.tokenizer), **sizes)).save_pretrained(folder)
    bundled.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def lens(small):
    return idl.load(small)


@pytest.fixture(scope="module")
def address(small, lens):
    with explorer({str(small): lens}, [TEXT]) as running:
        yield running


def opened_row(page):
    """Lock row 1 of layer 1, head 2, by keys, and wait until it is proven."""
    page.locator("#maps-0 [title='layer 1, head 2']").click()
    page.wait_for_selector("#maps-0 .viewer-title:text-is('Layer 1, head 2')")
    page.locator("#maps-0 .maps canvas").focus()
    # The row that the page has chosen is let go first.
    for key in ("Escape", "ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#maps-0 .viewer-row[data-proven=true][data-ready=true]")


@pytest.fixture
def page(browser, address):
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    complaints, requests = [], []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("dialog", lambda dialog: complaints.append(dialog.message))
    opened.on("request", lambda request: requests.append(request.url))
    opened.goto(f"{address}/#token={TOKEN}")
    opened.wait_for_selector("#maps-0[data-all]")
    yield opened
    assert complaints == []
    assert all(url.startswith((f"{address}/", "blob:", "data:")) for url in requests)
    opened.close()


def test_a_click_proves_a_row_and_a_change_by_hand_is_put_back(page, lens):
    opened_row(page)
    rows = page.eval_on_selector_all(
        "#maps-0 .row-keys tbody tr", "rows => rows.map((one) => ({...one.dataset}))"
    )
    found = idl.certify(lens, [TEXT], layers=(1,), heads=(2,), queries=(1,)).table
    exact, found = found.filter(tolerance="0"), found.filter(tolerance="bfloat16")
    for row in rows:
        expected = found.row(int(row["key"]), named=True)
        assert [float(row[name]) for name in ("weight", "lo", "hi")] == pytest.approx(
            [expected[name] for name in ("value", "lo", "hi")], abs=1e-7
        )
    page.locator("#maps-0 .row-keys .key").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".hand input:focus")
    slider = page.locator(".hand input")
    top = slider.bounding_box()["y"]
    assert 0 <= top <= page.viewport_size["height"], "the slider appears where it can be seen"
    key = int(page.locator("#maps-0 .row-keys tbody tr").first.get_attribute("data-key"))
    expected = exact.row(key, named=True)
    ends = slider.evaluate(
        "one => ['--from', '--to'].map((name) => parseFloat(one.parentElement.style.getPropertyValue(name)))"
    )
    assert ends == pytest.approx([100 * expected["lo"], 100 * expected["hi"]], abs=1e-6)
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".found:visible")
    said = page.inner_text(".found")
    assert "Put back into the model" in said
    assert "of its size (rounding)" in said
    assert "is rounding and stands as 0" in said
    assert page.locator(".hand + .found").is_visible(), "what came out stands below the slider"
    page.wait_for_selector(".hand input:focus")
    page.keyboard.press("End")
    page.wait_for_selector(".found:has-text('the rest shared by its other keys')")
    assert "the head's output changes" in page.inner_text(".hand")
    done = page.locator(".found .wide >> nth=0").locator("tbody th").all_inner_texts()
    assert [one.split(":")[0] for one in done] == ["The model as it is", "By hand"]
    assert page.locator("#maps-0 canvas[data-layer='changed row']").count() == 1
    assert "(rounding)" not in page.inner_text(".found .said")
    page.get_by_role("button", name="Take this key out").click()
    page.wait_for_selector(".found:has-text('with 0 on')")
    at = measured(lens, TEXT, lambda: None, lambda step: None)
    without = broken_row(at, at.head(1, 2, "encoder"), 1, key, 0.0)
    assert f"Put into the model: {without['answer']}." in page.inner_text(".found")


def test_a_page_without_the_token_shows_nothing(browser, address):
    opened = browser.new_page()
    opened.goto(f"{address}/")
    opened.wait_for_selector("#entry:visible")
    assert opened.locator(".pane").count() == 0
    assert opened.get_by_role("button", name="Two columns").is_hidden()
    opened.close()


def test_work_can_be_cancelled_and_pages_go_their_own_ways(page, browser, address, monkeypatch):
    def endless(_text, _head, check):
        while True:
            check()
            sleep(0.01)

    other = browser.new_page()
    other.goto(f"{address}/#token={TOKEN}")
    other.get_by_label("Text", exact=True).fill("Another page.")
    other.wait_for_selector("#maps-0[data-all] .tokens span:text-is('another')")
    monkeypatch.setattr("identilens.explorer.app.alternative", endless)
    page.get_by_text("Could this map be another one?").click()
    page.get_by_role("button", name="Farthest").click()
    page.get_by_role("button", name="Cancel").click()
    assert page.get_by_role("button", name="Cancel").is_hidden()
    # The model's one worker is free at once.
    opened_row(page)
    assert page.locator("#maps-0 .tokens span:text-is('engine')").count()
    assert other.locator("#maps-0 .tokens span:text-is('engine')").count() == 0
    other.close()


@pytest.fixture(scope="module")
def tour_address():
    with explorer({"bundled-decoder": idl.load("bundled-decoder")}, [STORY]) as running:
        yield running


@pytest.fixture
def phone(browser, tour_address):
    """The page on a phone, where results go out of sight first."""
    opened = browser.new_page(viewport={"width": 390, "height": 844})
    complaints = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(f"{tour_address}/#token={TOKEN}")
    opened.wait_for_selector("#maps-0[data-all]")
    yield opened
    assert complaints == []
    width = opened.viewport_size["width"]
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    opened.close()


def test_everything_is_reached_by_keys(phone):
    """Tab from the start: text, tools, heads, layers, map; a row is locked, a key chosen, its weight moved."""
    phone.locator("#columns").focus()
    reached = []
    for _ in range(60):
        phone.keyboard.press("Tab")
        reached.append(
            phone.evaluate("document.activeElement.ariaLabel || document.activeElement.textContent")
        )
        if phone.evaluate("document.activeElement.matches('#maps-0 .maps canvas')"):
            break
        if reached[-1] == "Layer 2, head 7":
            phone.keyboard.press("ArrowDown")
            phone.wait_for_selector("#maps-0 .viewer-title:text-is('Layer 3, head 7')")
    assert {"Model", "Text", "Layer 2, head 7", "What else can the map show?"} <= set(reached)
    assert not {"Raw", "Farthest"} & set(reached), "controls stand behind questions"
    assert reached[-1].startswith("Raw, layer 3, head 7: ")
    for key in ("Escape", "ArrowDown", "Enter"):
        phone.keyboard.press(key)
    phone.wait_for_selector("#maps-0 .viewer-row[data-proven=true]")
    for _ in range(7):
        phone.keyboard.press("Tab")
        if phone.evaluate("document.activeElement.matches('.key')"):
            break
    phone.keyboard.press("Enter")
    phone.wait_for_selector(".hand input:focus")
    phone.keyboard.press("Escape")
    phone.wait_for_selector(".row-keys .key:focus")
    phone.keyboard.press("Escape")
    phone.wait_for_selector("#maps-0 .maps canvas:focus")
    assert phone.locator("#maps-0 .viewer-row").is_hidden()
