"""The explorer as a person uses it: a text is measured as it is typed, a click proves a row, two pages stay apart."""

import csv
import shlex
import struct

import polars as pl
import pytest
import torch
from transformers import BertConfig, BertModel

import identilens as idl
from helpers.command import identilens
from helpers.serving import TOKEN, explorer
from identilens.explorer.runs import Runs

SCRIPT = "<script>alert(1)</script>"
TEXT = (
    "The engine had run without a pause for eleven days when the noise began, and the second engineer put it down to "
    f"a loose plate somewhere above the shaft {SCRIPT} until it grew regular."
)


@pytest.fixture(scope="module")
def small(bundled, tmp_path_factory):
    """A small encoder in a folder, with a tokenizer for words."""
    folder = tmp_path_factory.mktemp("models") / "small"
    sizes = {"hidden_size": 48, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(bundled.tokenizer), **sizes)).save_pretrained(folder)
    bundled.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def lens(small):
    return idl.load(small)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def address(small, lens, folder):
    with explorer({str(small): lens}, [TEXT], Runs(folder)) as running:
        yield running


def opened_row(page):
    """Lock row 1 of layer 1, head 2, by keys, and wait until it is proven."""
    page.locator("#maps-0 [title='layer 1, head 2']").click()
    page.wait_for_selector("#maps-0 .viewer-title:text-is('Layer 1, head 2')")
    page.locator("#maps-0 .maps canvas").focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#maps-0 .viewer-row[data-proven=true][data-ready=true]")


def saved(page, name, to):
    """Click a button that saves a file, and return where it lies."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name=name).click()
    path = to / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


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


def test_a_click_proves_a_row_and_a_change_by_hand_is_put_back(page, lens):
    opened_row(page)
    rows = page.eval_on_selector_all("#maps-0 .row-keys tbody tr", "rows => rows.map((one) => ({...one.dataset}))")
    found = idl.intervals(lens, [TEXT], layers=(1,), heads=(2,), queries=(1,)).table
    for row in rows:
        expected = found.row(int(row["key"]), named=True)
        assert [float(row[name]) for name in ("weight", "lo", "hi")] == pytest.approx(
            [expected[name] for name in ("weight", "lo", "hi")], abs=1e-9
        )
    page.locator("#maps-0 .row-keys .key").first.focus()
    page.keyboard.press("Enter")
    page.locator(".hand input").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".found:visible")
    assert "Put back into the model" in page.inner_text(".found")


def test_a_text_is_measured_as_it_is_typed(page):
    page.get_by_label("Text", exact=True).fill("Nobody on the quay could say.")
    page.wait_for_selector("#maps-0[data-all] .tokens span:text-is('quay')")
    assert page.locator("#maps-0 .viewer-heads button").count() == 8
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


def test_what_is_saved_makes_the_view_again(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    opened_row(page)
    size = page.eval_on_selector("#maps-0 .maps canvas", "one => [one.width, one.height]")
    picture = saved(page, "Save picture", tmp_path).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert list(struct.unpack(">II", picture[16:24])) == size
    with saved(page, "Save row as CSV", tmp_path).open() as file:
        rows = {int(row["key"]): row for row in csv.DictReader(file)}
    page.get_by_role("button", name="Command and Python").click()
    space = {}
    exec(saved(page, "Save the Python lines", tmp_path).read_text(), space)
    table = space["trust"].table
    for name in ("weight", "lo", "hi"):
        found = {key: float(row[name]) for key, row in rows.items()}
        assert found == pytest.approx({key: table[name][key] for key in rows}, abs=1e-6)
    assert "maps.html" in {path.name for path in tmp_path.iterdir()}
    program, *words = shlex.split(saved(page, "Save the command", tmp_path).read_text())
    assert program == "identilens"
    identilens(*words, code=0)
    again = pl.read_parquet(tmp_path / "run" / "table.parquet")
    assert again["lo"].to_list() == pytest.approx(table["lo"].to_list(), abs=1e-6)


def test_a_run_is_saved_and_opened_in_a_sandbox(page, folder):
    page.get_by_label("Text", exact=True).fill("A short text.")
    page.wait_for_selector("#maps-0[data-all] .tokens span:text-is('short')")
    page.get_by_role("button", name="Save as run").click()
    assert "Name the run first" in page.inner_text(".complaint")
    page.get_by_label("Name of the run").fill("first")
    page.keyboard.press("Enter")
    page.wait_for_selector("#runs option[value=first]", state="attached", timeout=60_000)
    assert (folder / "first" / "provenance.json").is_file()
    complaints = []
    page.context.on("page", lambda report: report.on("console", lambda message: complaints.append(message.text)))
    with page.expect_popup() as waiting:
        page.locator("#runs").select_option("first")
    report = waiting.value
    report.wait_for_selector(".viewer[data-ready]")
    assert "Attention audit" in report.inner_text("h1")
    assert report.evaluate("self.origin") == "null"
    assert report.evaluate("window.opener") is None
    assert report.evaluate("fetch('/explorer.js').then(() => 'asked', () => 'refused')") == "refused"
    report.close()
    assert [words for words in complaints if "explorer.js" not in words] == []


def test_work_can_be_cancelled_and_pages_go_their_own_ways(page, browser, address):
    other = browser.new_page()
    other.goto(f"{address}/?token={TOKEN}")
    other.get_by_label("Text", exact=True).fill("Another page.")
    other.wait_for_selector("#maps-0[data-all] .tokens span:text-is('another')")
    page.get_by_role("button", name="Contributions, exact").click()
    page.get_by_role("button", name="Cancel").click()
    assert page.get_by_role("button", name="Cancel").is_hidden()
    assert page.locator("#contributions-0").count() == 0
    # The model's one worker is free at once.
    opened_row(page)
    assert page.locator("#maps-0 .tokens span:text-is('engine')").count()
    assert other.locator("#maps-0 .tokens span:text-is('engine')").count() == 0
    other.close()


def test_everything_is_reached_by_keys(page):
    """Tab from the start: text, tools, heads, layers, map; a row is locked, a key chosen, its weight moved."""
    page.locator("#columns").focus()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.ariaLabel || document.activeElement.textContent"))
        if page.evaluate("document.activeElement.matches('#maps-0 .maps canvas')"):
            break
        if reached[-1] == "Layer 0, head 0":
            page.keyboard.press("ArrowDown")
            page.wait_for_selector("#maps-0 .viewer-title:text-is('Layer 1, head 0')")
    assert {"Model", "Text", "Farthest alternative", "Other W_Q and W_K", "Layer 0, head 0", "Raw"} <= set(reached)
    assert reached[-1].startswith("Raw, layer 1, head 0: ")
    for key in ("ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#maps-0 .viewer-row[data-proven=true]")
    for _ in range(5):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.key')"):
            break
    page.keyboard.press("Enter")
    page.wait_for_selector(".hand input:visible")
    page.keyboard.press("Escape")
