"""The explorer as a person uses it: a text is measured as it is typed, a click proves a row, two pages stay apart."""

import csv
import re
import shlex
import struct
from xml.etree import ElementTree

import polars as pl
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

import identilens as idl
from helpers.command import identilens
from helpers.serving import TOKEN, explorer
from identilens.explorer.runs import Runs
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
        "hidden_size": 48,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(bundled.tokenizer), **sizes)).save_pretrained(folder)
    bundled.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def lens(small):
    return idl.load(small)


@pytest.fixture(scope="module")
def tuned(small, bundled):
    """The small encoder after some steps of training."""
    torch.manual_seed(0)
    model = BertForSequenceClassification.from_pretrained(small, num_labels=2).train()
    optimiser, labels = torch.optim.AdamW(model.parameters(), lr=5e-3), torch.tensor([0, 1])
    batch = bundled.tokenizer(
        ["The engine had run.", "Nobody came."], padding=True, return_tensors="pt"
    )
    for _ in range(5):
        model(**batch, labels=labels).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    folder = small.parent / "tuned"
    model.save_pretrained(folder)
    bundled.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def address(small, tuned, lens, folder):
    with explorer({str(small): lens, str(tuned): idl.load(tuned)}, [TEXT], Runs(folder)) as running:
        yield running


def opened_row(page):
    """Lock row 1 of layer 1, head 2, by keys, and wait until it is proven."""
    page.locator("#maps-0 [title='layer 1, head 2']").click()
    page.wait_for_selector("#maps-0 .viewer-title:text-is('Layer 1, head 2')")
    page.locator("#maps-0 .maps canvas").focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#maps-0 .viewer-row[data-proven=true][data-ready=true]")


def plain_name(line):
    """Return the token of a key in the list."""
    return line.locator(".key").inner_text()


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
    found = idl.certify(lens, [TEXT], layers=(1,), heads=(2,), queries=(1,), tolerance=0).table
    for row in rows:
        expected = found.row(int(row["key"]), named=True)
        assert [float(row[name]) for name in ("weight", "lo", "hi")] == pytest.approx(
            [expected[name] for name in ("weight", "lo", "hi")], abs=1e-9
        )
    page.locator("#maps-0 .row-keys .key").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".hand input:focus")
    slider = page.locator(".hand input")
    top = slider.bounding_box()["y"]
    assert 0 <= top <= page.viewport_size["height"], "the slider appears where it can be seen"
    key = int(page.locator("#maps-0 .row-keys tbody tr").first.get_attribute("data-key"))
    expected = found.row(key, named=True)
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


def test_a_row_is_proven_by_the_answer_and_another_has_the_same_answer(page, tmp_path):
    page.get_by_role("button", name="Look for it").click()
    assert "Lock a row first" in page.inner_text(".pane .complaint")
    opened_row(page)
    exact = page.eval_on_selector_all(
        "#maps-0 .row-keys tr[data-lo]", "all => all.map((one) => one.dataset.hi)"
    )
    note = page.locator("#maps-0 .viewer-row p.soft")
    assert "the head's output, exactly" in note.inner_text()
    page.get_by_label("What must stay the same").select_option("answer 10%")
    page.wait_for_selector("#maps-0 .viewer-row p.soft:has-text('first order')")
    page.wait_for_selector("#maps-0 .viewer-row[data-proven=true][data-ready=true]")
    said = note.inner_text()
    assert "the model's final hidden states, up to 10 % of the row's effect" in said
    assert "of the row's attention is certain to stay on its keys" in said
    wider = page.eval_on_selector_all(
        "#maps-0 .row-keys tr[data-lo]", "all => all.map((one) => one.dataset.hi)"
    )
    assert sum(map(float, wider)) > sum(map(float, exact))
    with saved(page, "Row as CSV", tmp_path).open() as file:
        row = next(csv.DictReader(file))
    assert (row["outcome"], row["tolerance"]) == ("states", "10%")
    page.get_by_role("button", name="Command and Python").click()
    assert "--outcome states --tolerance 10%" in page.inner_text(".found pre >> nth=0")
    assert 'outcome="states", tolerance="10%"' in page.inner_text(".found pre >> nth=1")
    page.get_by_label("Heads that change").select_option("layer")
    page.get_by_role("button", name="Look for it").click()
    page.wait_for_selector(".found:has-text('With the same answer')")
    said = page.inner_text(".found")
    assert "up to 1% of the effect of these rows of 4 heads" in said
    assert "the model's final hidden states change by" in said
    for head in (2, 0):
        page.locator(f"#maps-0 [title='layer 1, head {head}']").click()
        page.wait_for_selector(f"#maps-0 .viewer-title:text-is('Layer 1, head {head}')")
        assert page.locator("#maps-0 [data-layer='same answer']").count() >= 1
    page.get_by_role("button", name="Command and Python").click()
    command = page.inner_text(".found pre >> nth=0")
    assert command.rstrip().endswith("--together --out changed")


def test_until_a_row_is_proven_it_has_no_intervals(page):
    page.route("**/api/row", lambda route: page.evaluate("window.held = true") or None)
    page.locator("#maps-0 .maps canvas").focus()
    for key in ("ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#maps-0 .viewer-row[data-ready=true]")
    assert "is being proven" in page.inner_text("#maps-0 .viewer-row .soft")
    assert page.locator("#maps-0 .row-keys tbody tr[data-lo]").count() == 0
    page.locator("#maps-0 .row-keys .key").first.click()
    assert page.locator(".hand").is_hidden(), "no slider without proven ends"


def test_a_text_is_measured_as_it_is_typed(page):
    page.get_by_label("Text", exact=True).fill("Nobody on the quay could say.")
    page.wait_for_selector("#maps-0[data-all] .tokens span:text-is('quay')")
    assert page.locator("#maps-0 .viewer-heads button").count() == 8
    page.get_by_role("button", name="Command and Python").click()
    assert "--text 'Nobody on the quay could say.'" in page.inner_text(".found pre >> nth=0")


def test_the_text_is_marked_by_what_the_answer_needs(page, tuned):
    for name, why in (("Mark them", "predicts no token"), ("Let it answer", "writes no answers")):
        assert page.get_by_role("button", name=name).is_disabled()
        assert why in page.inner_text(f".pair:has(button:text-is('{name}'))")
    page.get_by_label("Model", exact=True).select_option(str(tuned))
    page.wait_for_selector("#maps-0[data-all]")
    page.get_by_label("Next token or class").fill("LABEL_1")
    page.keyboard.press("Enter")
    page.wait_for_selector(".found .token-line")
    words = page.inner_text(".found")
    assert "'LABEL_1' has probability" in words
    assert "Of the tokens that can be taken out" in words
    assert page.locator(".found .token-line .token:has-text('eleven')").count() == 1
    assert page.locator(".found script").count() == 0


def test_two_columns_stand_beside_each_other(page):
    page.get_by_role("button", name="Two columns").click()
    page.wait_for_selector("#maps-1[data-all]")
    assert page.locator(".pane").count() == 2
    page.get_by_role("button", name="Two columns").click()
    assert page.locator(".pane").count() == 1


def shown(page):
    """What each column shows: title of the head, locked row, model, and the weights of the row's keys."""
    return page.evaluate(
        """[...document.querySelectorAll(".pane")].map((pane) => ({
          head: pane.querySelector(".viewer-title").textContent, row: pane.querySelector(".viewer-row h3").textContent,
          model: pane.querySelector("select").selectedOptions[0].textContent,
          text: pane.querySelector("textarea").value,
          weights: [...pane.querySelectorAll(".row-keys tbody tr")].map((one) => Number(one.dataset.weight)),
        }))"""
    )


def test_the_address_holds_a_model_beside_its_fine_tuning(page, browser, address, lens, tuned):
    opened_row(page)
    page.get_by_role("button", name="Two columns").click()
    page.wait_for_selector("#maps-1[data-all]")
    page.locator(".pane >> nth=1").get_by_label("Text", exact=True).fill(
        "Nobody came, and the engine ran on & on."
    )
    page.wait_for_selector("#maps-1[data-all] .tokens span:text-is('nobody')")
    page.locator("#maps-1 [title='layer 0, head 3']").click()
    page.wait_for_selector("#maps-1 .viewer-title:text-is('Layer 0, head 3')")
    page.locator("#maps-1 .maps canvas").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#maps-1 .viewer-row[data-proven=true][data-ready=true]")
    page.wait_for_url(lambda url: "row%3D2" in url)
    before, link = shown(page), page.url
    assert TOKEN not in link
    assert [(one["model"], one["head"]) for one in before] == [
        ("small", "Layer 1, head 2"),
        ("tuned", "Layer 0, head 3"),
    ]
    other = idl.load(tuned)
    for place, (model, layer, head, row) in enumerate([(lens, 1, 2, 1), (other, 0, 3, 2)]):
        found = idl.certify(
            model, [before[place]["text"]], layers=layer, heads=head, queries=row, tolerance=0
        ).table["weight"]
        expected = found.sort(descending=True).to_list()[: len(before[place]["weights"])]
        assert before[place]["weights"] == pytest.approx(expected, abs=1e-9)
    page.reload()
    for number in (0, 1):
        page.wait_for_selector(
            f"#maps-{number}[data-all] .viewer-row[data-proven=true][data-ready=true]"
        )
    assert shown(page) == before
    # Opened elsewhere, the link shows nothing until the token is given.
    elsewhere = browser.new_page()
    elsewhere.goto(link)
    elsewhere.wait_for_selector("#entry:visible")
    assert elsewhere.locator(".pane").count() == 0
    elsewhere.locator("#entry input").fill("wrong")
    elsewhere.keyboard.press("Enter")
    elsewhere.wait_for_selector("#entry .complaint:has-text('token is missing or wrong')")
    elsewhere.locator("#entry input").fill(f"{address}/#token={TOKEN}")
    elsewhere.keyboard.press("Enter")
    for number in (0, 1):
        elsewhere.wait_for_selector(
            f"#maps-{number}[data-all] .viewer-row[data-proven=true][data-ready=true]"
        )
    assert shown(elsewhere) == before
    assert elsewhere.url == link
    elsewhere.close()


def test_an_address_that_does_not_fit_is_told(page):
    page.evaluate("location.hash = 'model=other&text=Nobody&view=layer%3D99%26head%3D7'")
    page.wait_for_selector(".complaint:has-text('This explorer has no model other.')")
    assert page.locator(".viewer").count() == 0
    page.evaluate(
        "location.hash = 'model=tuned&text=Nobody%20came.&view=layer%3D99%26head%3D3%26row%3D400'"
    )
    page.wait_for_selector("#maps-0[data-all] .tokens span:text-is('nobody')")
    page.wait_for_selector("#maps-0 .viewer-title:text-is('Layer 0, head 3')")
    page.get_by_label("Text", exact=True).fill("Nobody came. " * 200)
    page.wait_for_selector("#maps-0[data-all] .tokens span >> nth=200")
    assert "Nobody" not in page.url
    page.reload()
    page.wait_for_selector(".complaint:has-text('The text was too long for the address')")


HOSTILE = """<!DOCTYPE html><title>a report</title><body><script>
const attempt = (act) => { try { return String(act()); } catch (error) { return `refused: ${error.name}`; } };
window.loot = { address: document.URL, referrer: document.referrer, opener: String(window.opener), name: window.name,
  session: attempt(() => sessionStorage.getItem("token")), local: attempt(() => localStorage.length),
  cookies: attempt(() => document.cookie), answers: [] };
const key = new URL(document.URL).searchParams.get("key");
const headers = { "Content-Type": "application/json", "X-Identilens-Token": key };
(async () => {
  const start = ["/api/start", { method: "POST", headers, body: "{}" }];
  for (const [path, options] of [["/", {}], start, ["/run/other" + location.search, {}]])
    loot.answers.push(await fetch(path, options).then((answer) => answer.status, (error) => error.name));
  document.body.append("done");
})();
</script>"""


def test_a_hostile_report_learns_nothing(page, folder, monkeypatch):
    (folder / "hostile").mkdir()
    (folder / "hostile" / "provenance.json").write_text("{}")
    # Reports are made here, from tables; the sandbox is for faults in that.
    monkeypatch.setattr(Runs, "report", lambda *_: HOSTILE)
    page.reload()
    page.wait_for_selector("#runs option:text-is('hostile')", state="attached")
    with page.expect_popup() as waiting:
        page.locator("#runs").select_option(label="hostile")
    around = waiting.value
    around.wait_for_selector("iframe")
    report = around.frames[1]
    report.wait_for_selector("body:has-text('done')")
    loot = report.evaluate("loot")
    assert TOKEN not in str(loot)
    assert loot["address"].split("?")[0].endswith("/run/hostile/report")
    assert (loot["referrer"], loot["opener"], loot["name"]) == ("", "null", "")
    assert [loot[name] for name in ("session", "local", "cookies")] == [
        "refused: SecurityError"
    ] * 3
    assert loot["answers"] == ["TypeError"] * 3
    # A report can go nowhere, and takes nothing there: neither in its frame nor around it.
    asked = []
    around.on("request", lambda request: asked.append(request.url))
    report.evaluate("try { top.location.href = 'http://127.0.0.1:9/?top' } catch (error) {}")
    report.evaluate("window.open('http://127.0.0.1:9/?popup')")
    report.evaluate("setTimeout(() => { location.href = 'http://127.0.0.1:9/?frame' })")
    around.wait_for_timeout(500)
    assert "/run/hostile?key=" in around.url
    assert [url for url in asked if ":9/" in url] == []
    around.close()


def test_a_page_without_the_token_shows_nothing(browser, address):
    opened = browser.new_page()
    opened.goto(f"{address}/")
    opened.wait_for_selector("#entry:visible")
    assert opened.locator(".pane").count() == 0
    assert opened.get_by_role("button", name="Two columns").is_hidden()
    opened.close()


def test_a_row_is_a_slide(page, tmp_path):
    page.get_by_role("button", name="Row as SVG").click()
    assert "Lock a row first" in page.inner_text(".pane .complaint")
    opened_row(page)
    slide = ElementTree.parse(saved(page, "Row as SVG", tmp_path))
    said = [text.text for text in slide.iter("{http://www.w3.org/2000/svg}text")]
    assert said[0] == "What “the” (token 1) attends to"
    assert "layer 1, head 2" in said[1]
    assert "keys, each with its position" in said[1]
    assert said[3].startswith("the head's output, exactly")
    first = page.locator("#maps-0 .row-keys tbody tr").first
    at = said.index(f"{plain_name(first)} · {first.get_attribute('data-key')}")
    weight, lo, hi = (float(first.get_attribute(f"data-{name}")) for name in ("weight", "lo", "hi"))
    assert float(said[at + 1]) == pytest.approx(weight, abs=6e-4)
    least, most = map(float, said[at + 2].split(" to "))
    assert lo - 1e-3 < least <= lo + 1e-12, "proven ends are rounded outward"
    assert hi - 1e-12 <= most < hi + 1e-3
    assert "changed" not in said
    page.get_by_role("button", name="Take the row's strongest key out").click()
    page.wait_for_selector(".found:has-text('with 0 on')")
    page.wait_for_selector("#maps-0 .viewer-row[data-proven=true][data-ready=true]")
    slide = ElementTree.parse(saved(page, "Row as SVG", tmp_path))
    said = [text.text for text in slide.iter("{http://www.w3.org/2000/svg}text")]
    assert "changed" in said
    assert said[-2].startswith("Diamond: the row after the last change (Break: row 1,")
    picture = saved(page, "Row as PNG", tmp_path).read_bytes()
    assert struct.unpack(">II", picture[16:24]) == (1280, 720)


def test_what_is_saved_makes_the_view_again(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    opened_row(page)
    size = page.eval_on_selector("#maps-0 .maps canvas", "one => [one.width, one.height]")
    picture = saved(page, "Map as PNG", tmp_path).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert list(struct.unpack(">II", picture[16:24])) == size
    with saved(page, "Row as CSV", tmp_path).open() as file:
        rows = {int(row["key"]): row for row in csv.DictReader(file)}
    page.get_by_role("button", name="Farthest").click()
    page.wait_for_selector(".found:has-text('total variation')")
    distance = re.search(r"[0-9.]+(?= away)", page.inner_text(".found"))[0]
    page.get_by_role("button", name="Command and Python").click()
    space = {}
    exec(saved(page, "Save the Python lines", tmp_path).read_text(), space)
    moved = (space["other"] - space["head"].attention).abs().sum(-1).mean() / 2
    assert f"{float(moved):.3f}" == distance
    table = space["certainty"].table
    for name in ("weight", "lo", "hi"):
        found = {key: float(row[name]) for key, row in rows.items()}
        assert found == pytest.approx({key: table[name][key] for key in rows}, abs=1e-6)
    assert "maps.html" in {path.name for path in tmp_path.iterdir()}
    assert {(row["outcome"], row["tolerance"]) for row in rows.values()} == {("head", "0")}
    program, *words = shlex.split(saved(page, "Save the command", tmp_path).read_text())
    assert program == "identilens"
    identilens(*words, code=0)
    again = pl.read_parquet(tmp_path / "run" / "table.parquet")
    assert again.filter(tolerance="0")["lo"].to_list() == pytest.approx(
        table["lo"].to_list(), abs=1e-6
    )


def test_a_run_is_saved_and_opened_in_a_sandbox(page, folder):
    page.get_by_label("Text", exact=True).fill("A short text.")
    page.wait_for_selector("#maps-0[data-all] .tokens span:text-is('short')")
    page.get_by_role("button", name="Save as run").click()
    assert "Name the run first" in page.inner_text(".pane .complaint")
    page.get_by_label("Name of the run").fill("first")
    page.keyboard.press("Enter")
    page.wait_for_selector("#runs option:text-is('first')", state="attached", timeout=60_000)
    assert (folder / "first" / "provenance.json").is_file()
    complaints = []
    page.context.on(
        "page", lambda report: report.on("console", lambda message: complaints.append(message.text))
    )
    with page.expect_popup() as waiting:
        page.locator("#runs").select_option(label="first")
    around = waiting.value
    around.wait_for_selector("iframe")
    report = around.frames[1]
    report.wait_for_selector(".viewer[data-ready]")
    assert "Attention audit" in report.inner_text("h1")
    assert report.evaluate("self.origin") == "null"
    assert report.evaluate("window.opener") is None
    assert (
        report.evaluate("fetch('/explorer.js').then(() => 'asked', () => 'refused')") == "refused"
    )
    around.close()
    assert [words for words in complaints if "explorer.js" not in words] == []


def test_work_can_be_cancelled_and_pages_go_their_own_ways(page, browser, address):
    other = browser.new_page()
    other.goto(f"{address}/#token={TOKEN}")
    other.get_by_label("Text", exact=True).fill("Another page.")
    other.wait_for_selector("#maps-0[data-all] .tokens span:text-is('another')")
    page.get_by_role("button", name="Exact").click()
    page.get_by_role("button", name="Cancel").click()
    assert page.get_by_role("button", name="Cancel").is_hidden()
    assert page.locator("#contributions-0").count() == 0
    # The model's one worker is free at once.
    opened_row(page)
    assert page.locator("#maps-0 .tokens span:text-is('engine')").count()
    assert other.locator("#maps-0 .tokens span:text-is('engine')").count() == 0
    other.close()


def test_a_click_on_a_token_tells_its_nearest_rival(page):
    page.get_by_label("How the hidden states are stored").select_option("int3")
    page.get_by_role("button", name="Read them").click()
    token = page.locator(".found .token-line .token:has-text('eleven')")
    token.click()
    shown = token.evaluate("one => getComputedStyle(one, '::after').content")
    assert "nearest rival" in shown
    page.keyboard.press("Tab")
    assert token.evaluate("one => getComputedStyle(one, '::after').content") == "none"
    assert "nothing is certified" in page.inner_text(".found")
