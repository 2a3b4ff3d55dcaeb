"""Results that reports must cope with, and a browser."""

import shutil

import pytest

from helpers.structures import structure_of
from helpers.visit import Visit
from identilens.results import Structure

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
