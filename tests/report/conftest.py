"""Results that reports must cope with, and a browser."""

import shutil

import polars as pl
import pytest

from helpers.mixings import random_mixing
from helpers.structures import structure_of
from helpers.visit import Visit
from identilens.results import Mixing, Structure

SCRIPT = "<script>alert(1)</script>"
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TRICKY = (SCRIPT, "</script>", "<!--", "\u2028", "$x$", "_$", "&amp;", "<b>bold</b>", "水", "", "\n", "\u202egnp")


def words(count: int) -> list[str]:
    """Return distinct tokens, special ones at both ends."""
    return ["[CLS]", *(f"word{index}" for index in range(count - 2)), "[SEP]"][:count]


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="install identilens[dev] for playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("install chromium (Debian: apt-get install chromium) for the browser tests")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def mixing_result() -> Mixing:
    """An encoder-decoder's mixing with tricky tokens and parts of speech."""
    source = [["[CLS]", *TRICKY, "harbour", "[SEP]", "ferry", "[SEP]"], words(9)]
    target = [words(6), ["[CLS]", "quay", SCRIPT]]
    parts = [
        random_mixing(source)[1],
        random_mixing(target, kind="decoder")[1],
        random_mixing(target, kind="cross", inputs=source)[1],
    ]
    table, tokens = (pl.concat([getattr(part, name) for part in parts]) for name in ("table", "tokens"))
    return Mixing(table, tokens, parts[0].provenance)


@pytest.fixture(scope="session")
def tagged_mixing() -> Mixing:
    """An encoder's mixing with a tag, one of them hostile, for every token."""
    tokens = [words(9), words(24)]
    rows = [
        (text, position, (SCRIPT, "NN", "DT")[position % 3])
        for text, names in enumerate(tokens)
        for position in range(len(names))
    ]
    schema = {"text": pl.Int32, "position": pl.Int32, "tag": pl.String}
    return random_mixing(tokens)[1].with_tags(pl.DataFrame(rows, schema=schema, orient="row"))


@pytest.fixture(scope="session")
def structure_result() -> Structure:
    """The structure of a tiny encoder's attention, with a hostile model name."""
    return structure_of()


@pytest.fixture(scope="module")
def opened(browser, report):
    opened = Visit(browser, report)
    yield opened
    opened.page.close()


@pytest.fixture
def page(opened, report):
    """The open page, as the tests before left it; each chooses all that it needs."""
    yield opened.page
    assert opened.requests == [report.as_uri()]
    assert opened.complaints == []
    assert opened.page.locator("#failure").is_hidden()
