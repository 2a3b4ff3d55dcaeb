"""Every page of the documentation: its Python examples run, its links, names and commands exist."""

import json
import re
import runpy
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Lt
from markdown import Markdown

from identilens.models import load
from identilens.runs.settings import Numbers, Settings

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
    for before, fails in (
        ("", True),
        ("<!-- notest -->\n", True),
        ("<!-- notest: needs a key -->\n", False),
    ):
        page.write_text(f"{before}```python\nraise SystemExit(3)\n```\n")
        assert bool(list(CHECKS["failed_examples"](page))) == fails
    page.write_text("```python notest\nraise SystemExit(3)\n```\n")
    assert "nothing may follow the language" in next(CHECKS["failed_examples"](page))


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_story_of_the_first_page_is_as_measured():
    story = runpy.run_path(str(ROOT / "tools" / "pictures.py"))
    lens = load("bundled-decoder")
    said = story["measured"](lens, story["rows_of"](lens))
    short = {name: said[name] for name in ("change of the prediction", "effect")}
    for page, figures in {
        "docs/index.md": said,
        "docs/start.md": short,
        "README.md": short,
    }.items():
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert [figure for figure in figures.values() if figure not in text] == [], page


def typeset(text):
    """Text of a page as the site shows it."""
    formulas = runpy.run_path(str(ROOT / "tools" / "formulas.py"))["Formulas"]()
    return Markdown(extensions=[formulas, "pymdownx.superfences"]).convert(text)


def test_formulas_are_typeset_and_code_is_left_alone():
    shown = typeset("So $a'_j \\le 1$, and `$x$`.\n\n```math\n\\|a\\|^2\n```\n\n```\n$y$\n```\n")
    assert '<msub><mrow><mi>a</mi><mo lspace="0" rspace="0">′</mo></mrow><mi>j</mi></msub>' in shown
    assert "</math>,</span> and <code>$x$</code>" in shown
    assert '<div class="formula"><math display="block">' in shown
    assert shown.count("<math") == 2
    assert "$y$" in shown


@pytest.mark.parametrize("latex", [r"\arg\min_y", r"\begin{aligned} a &= b \end{aligned}"])
def test_a_formula_that_would_be_shown_as_it_is_written_is_refused(latex):
    with pytest.raises(ValueError, match="commands"):
        typeset(f"${latex}$")


@dataclass(frozen=True, kw_only=True)
class Shown(Settings):
    """A setting of each kind.

    Attributes:
        size: Of the
            window.
        layers: Which.
        way: Up | down.
        share: Of all.
    """

    size: Annotated[int, Ge(1)]
    layers: Numbers | None = None
    way: Literal["up", "down"] = "up"
    share: Annotated[float, Ge(0), Lt(1)] = 1e-6


def test_a_table_of_settings_has_type_default_range_and_words():
    table = runpy.run_path(str(ROOT / "tools" / "tables.py"))["settings_table"](Shown)
    assert [line for line in table.splitlines() if line.startswith("| `")] == [
        "| `size` | whole number | **required** | ≥ 1 | Of the window. |",
        "| `layers` | list: whole number | not set |  | Which. |",
        "| `way` | choice | `up` | `up`, `down` | Up \\| down. |",
        "| `share` | number | `1e-06` | ≥ 0, < 1 | Of all. |",
    ]


def test_the_licences_of_what_is_packed_are_stated():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["license"] == "Apache-2.0 AND CC-BY-SA-3.0"
    words = " ".join((ROOT / name).read_text(encoding="utf-8") for name in project["license-files"])
    for needed in (
        "Apache License",
        "CC BY-SA 3.0",
        "demo/decoder",
        "Interactive Data Lab",
        "Mike Bostock",
    ):
        assert needed in words


def test_the_bundled_models_have_one_digest_everywhere():
    named = {"encoder": load("bundled").digest, "decoder": load("bundled-decoder").digest}
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        for kind, digest in re.findall(
            r"bundled (encoder|decoder) \(\w+ checksum ([0-9a-f]+)", text
        ):
            assert named[kind].startswith(f"checksum:{digest}"), page


def test_the_stub_is_made_of_the_settings():
    reference = runpy.run_path(str(ROOT / "tools" / "reference.py"))
    assert reference["STUB"].read_text("utf-8") == reference["stub"](), "run: make docs"


def test_an_editor_knows_results_and_misspelt_options(tmp_path):
    page = tmp_path / "page.py"
    page.write_text(
        "import identilens as idl\n"
        'audit = idl.audit(idl.load("bundled"), "Nobody came.", layers="0-3", certain_rows=1)\n'
        "print(audit.table, idl.errors.InputError)\n"
        'idl.audit(idl.load("bundled"), "Nobody came.", layerz=3)\n'
    )
    program = [sys.executable, "-m", "pyright", "--outputjson", str(page)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    [told] = json.loads(done.stdout)["generalDiagnostics"]
    assert told["range"]["start"]["line"] == 3
    assert "layerz" in told["message"]
