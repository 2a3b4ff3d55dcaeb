"""What the report of a mixing result shows: tokens as they are, and one kind of states at a time."""

import pytest

from helpers.browsing import Visit
from helpers.mixings import tricky_mixing
from helpers.pages import SCRIPT


@pytest.fixture(scope="module")
def tricky():
    return tricky_mixing()


@pytest.fixture(scope="module")
def report(tricky, tmp_path_factory):
    return tricky.tracking("harbour").to_html(
        tmp_path_factory.mktemp("mixing") / "new" / "report.html"
    )


def test_hostile_names_are_text_and_kinds_are_chosen(report, browser):
    assert SCRIPT not in report.read_text("utf-8")
    visit = Visit(browser, report, 390, "dark")
    own = visit.page.locator("#own_contribution-0-controls").get_by_label("Hidden states")
    before = visit.page.locator("#own_contribution-0 svg").inner_html()
    own.select_option("decoder")
    visit.page.wait_for_function(
        "old => document.querySelector('#own_contribution-0 svg').innerHTML !== old", arg=before
    )
    visit.close()
