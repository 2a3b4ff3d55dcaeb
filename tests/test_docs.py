"""Every page of the documentation: its Python examples run, its links, names and commands exist."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECKS = runpy.run_path(str(ROOT / "tools" / "check_docs.py"))
PAGES = [page for page in CHECKS["PAGES"] if "reference" not in page.parts]
FOLLOWED = ["README.md", "docs/start.md", "docs/settings.md"]
"""Pages that tests/test_first_contact.py runs from top to bottom."""

WITH_EXAMPLES = [
    page for page in PAGES
    if "```python" in page.read_text(encoding="utf-8") and str(page.relative_to(ROOT)) not in FOLLOWED
]  # fmt: skip


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.stem)
@pytest.mark.usefixtures("bundled_path")
def test_the_examples_of_a_page_run(page):
    assert list(CHECKS["failed_examples"](page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.usefixtures("unchecked_shapes")
def test_links_names_and_commands_of_a_page_exist(page):
    wrong = [*CHECKS["broken_links"](page), *CHECKS["unknown_names"](page)]
    assert [*wrong, *CHECKS["wrong_commands"](page, CHECKS["make_app"]())] == []


def test_a_block_that_does_not_run_needs_a_reason(tmp_path):
    page = tmp_path / "page.md"
    for before, fails in (("", True), ("<!-- notest -->\n", True), ("<!-- notest: needs a key -->\n", False)):
        page.write_text(f"{before}```python\nraise SystemExit(3)\n```\n")
        assert bool(list(CHECKS["failed_examples"](page))) == fails
    page.write_text("```python notest\nraise SystemExit(3)\n```\n")
    assert "nothing may follow the language" in next(CHECKS["failed_examples"](page))
