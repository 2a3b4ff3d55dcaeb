"""The explorer as a person uses it: a text is measured as it is typed, a click proves a row, two pages stay apart."""

import pytest

import identilens as idl
from helpers.serving import TOKEN, explorer

SCRIPT = "<script>alert(1)</script>"
TEXT = (
    "The engine had run without a pause for eleven days when the noise began, and the second engineer put it down to "
    f"a loose plate somewhere above the shaft {SCRIPT} until it grew regular."
)


@pytest.fixture(scope="module")
def address(bundled):
    with explorer({"encoder": bundled}, [TEXT]) as running:
        yield running


@pytest.fixture
def page(browser, address):
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    complaints, requests = [], []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("dialog", lambda dialog: complaints.append(dialog.message))
    opened.on("request", lambda request: requests.append(request.url))
    opened.goto(f"{address}/?token={TOKEN}")
    opened.wait_for_selector("#maps-0[data-all]")
    yield opened
    assert complaints == []
    assert all(url.startswith((f"{address}/", "blob:", "data:")) for url in requests)
    opened.close()


def test_a_click_proves_a_row_and_a_change_by_hand_is_put_back(page, bundled):
    page.locator("#maps-0 [title='layer 3, head 10']").click()
    page.wait_for_selector("#maps-0 .viewer-title:text-is('Layer 3, head 10')")
    page.locator("#maps-0 .maps canvas").focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#maps-0 .viewer-row[data-proven=true][data-ready=true]")
    rows = page.eval_on_selector_all("#maps-0 .row-keys tbody tr", "rows => rows.map((one) => ({...one.dataset}))")
    found = idl.intervals(bundled, [TEXT], layers=(3,), heads=(10,), queries=(1,)).table
    for row in rows:
        expected = found.row(int(row["key"]), named=True)
        assert [float(row[name]) for name in ("weight", "lo", "hi")] == pytest.approx(
            [expected[name] for name in ("weight", "lo", "hi")], abs=1e-9
        )
    page.locator("#maps-0 .row-keys tbody tr").first.click()
    page.locator(".hand input").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".found:visible")
    assert "Put back into the model" in page.inner_text(".found")


def test_a_text_is_measured_as_it_is_typed(page):
    page.get_by_label("Text", exact=True).fill("Nobody on the quay could say.")
    page.wait_for_selector("#maps-0[data-all] .tokens span:text-is('quay')")
    assert page.locator("#maps-0 .viewer-heads button").count() == 72
    page.get_by_role("button", name="Command and Python").click()
    assert "--text 'Nobody on the quay could say.'" in page.inner_text(".found pre >> nth=0")


def test_two_columns_stand_beside_each_other(page):
    page.get_by_role("button", name="Two columns").click()
    page.wait_for_selector("#maps-1[data-all]")
    assert page.locator(".pane").count() == 2
    page.get_by_role("button", name="Two columns").click()
    assert page.locator(".pane").count() == 1


def test_a_page_without_the_token_shows_nothing(browser, address):
    opened = browser.new_page()
    assert opened.goto(f"{address}/").status == 403
    opened.close()
