"""Every page of the documentation: its Python examples run, its links, names and commands exist."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import polars as pl
import pytest
import torch
from annotated_types import Ge, Lt
from markdown import Markdown

from helpers.command import identilens
from identilens.models import load
from identilens.reproduce.registry import REPRODUCTIONS
from identilens.runs.settings import Numbers, Settings

ROOT = Path(__file__).parents[1]
CHECKS = runpy.run_path(str(ROOT / "tools" / "check_docs.py"))
PAGES = [page for page in CHECKS["PAGES"] if "reference" not in page.parts]
FOLLOWED = ["README.md", "docs/start.md", "docs/settings.md"]
"""Pages that are run from top to bottom."""

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


TOOL = runpy.run_path(str(ROOT / "tools" / "tables.py"))
ROWS = TOOL["stored_rows"]()
COUNTS = {
    "Brunner et al. 2020": ("Figure", 43), "Bhardwaj et al. 2021": ("Figure", 6), "structure2025": ("Figure", 2),
    "Wen et al. 2023": ("Figure", 10),
}  # fmt: skip


def numbers(item):
    """The figures that an item names: "Figures 19 to 25", "Figures 1b and 1c"."""
    found = [int(number) for number in re.findall(r"\d+", item)]
    return range(found[0], found[-1] + 1) if " to " in item else found


def test_the_page_is_made_from_the_stored_rows():
    page = (ROOT / "docs" / "reproductions.md").read_text(encoding="utf-8")
    assert page == TOOL["figures_page"](), "run: make docs"


@pytest.mark.parametrize("paper", COUNTS)
def test_every_figure_has_a_row(paper):
    word, count = COUNTS[paper]
    items = [row["item"] for row in ROWS if row["paper"] == paper and row["item"].startswith(word)]
    assert {number for item in items for number in numbers(item)} == set(range(1, count + 1))


def test_the_tables_have_rows():
    tables = [row["item"] for row in ROWS if row["item"].startswith("Table 1")]
    named = " ".join(tables).lower().replace(" news", "_news")
    assert all(
        task in named
        for task in ("trec", "sst", "ag_news", "dbpedia", "snli", "imdb", "yelp", "sogou")
    )
    assert "Table 1" in tables  # Wen et al.


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['paper']} {row['item']}")
def test_a_row_says_what_it_rests_on(row):
    assert row["verdict"] in TOOL["VERDICTS"]
    assert row["ours"] or row["verdict"] == "illustration"
    if row["verdict"] in ("agrees", "partly", "differs"):
        assert re.search(r"\d", row["ours"]), "a verdict needs a measured number"
    if row["page"]:
        assert (ROOT / "docs" / row["page"]).exists()
    if row["command"]:
        assert row["command"].split()[:2] == ["identilens", "reproduce"]
        assert row["command"].split()[2] in REPRODUCTIONS


def test_every_reproduction_is_on_the_page():
    assert set(REPRODUCTIONS) <= {row["command"].split()[2] for row in ROWS if row["command"]}


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?")


def assert_stored(output, value):
    """Assert that a table or tensor is stored as it is now; numbers may be rounded otherwise."""
    assert output["data"].keys() & {"image/png", "text/html", "text/plain"}
    if not isinstance(value, pl.DataFrame | torch.Tensor):
        return
    stored = "".join(output["data"]["text/plain"])
    numbers = [np.array(NUMBER.findall(text), float) for text in (stored, repr(value))]
    assert numbers[0].shape == numbers[1].shape, "run tools/pictures.py"
    assert np.allclose(*numbers, rtol=0.01, atol=1e-4), "run tools/pictures.py"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_its_results(path, bundled_path):
    run_cell = runpy.run_path(str(ROOT / "tools" / "pictures.py"))["run_cell"]
    names, shown = {}, 0
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        value = run_cell("".join(cell["source"]), names)
        assert len(cell["outputs"]) == (value is not None)
        for output in cell["outputs"]:
            assert_stored(output, value)
        if hasattr(value, "_repr_html_"):
            shown += bool(value._repr_html_())
        elif hasattr(value, "_repr_mimebundle_"):
            html = value._repr_mimebundle_()["text/html"]
            assert "://cdn" not in html
            shown += bool(html)
    assert shown >= 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_installs_first_and_is_small(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    first = next(cell for cell in cells if cell["cell_type"] == "code")
    assert "".join(first["source"]).startswith('%pip install --quiet "identilens')
    assert path.stat().st_size < 300_000


def test_there_are_four():
    assert len(NOTEBOOKS) == 4


LEFT_OUT = {
    "make ": "makes an environment of its own and runs for minutes; what it runs is tested by itself",
    "identilens explore": "serves a page until it is stopped; tests/explorer has it",
    "pip install": "downloads; `make release-check` installs the built package",
}


def blocks(page):
    """The kind and the text of each block of code on a page, those of Python that follow one another as one."""
    found = re.findall(
        r"^```(\w+)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return [
        (kind, "\n".join(text for _, text in group))
        for kind, group in groupby(found, key=lambda one: one[0])
    ]


def typed(block):
    """The lines that are typed in a block of the console, but for those that are left out."""
    lines = re.findall(r"^\$ (.*(?:\\\n.*)*)", block, re.MULTILINE)
    return [line for line in lines if not line.startswith(tuple(LEFT_OUT))]


@pytest.mark.parametrize("page", FOLLOWED)
@pytest.mark.usefixtures("bundled_path")
def test_a_page_can_be_followed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    printed = StringIO()
    for kind, text in blocks(ROOT / page):
        if kind == "toml":
            Path("settings.toml").write_text(text)
            Path("texts.txt").write_text("The ferry left the harbour before dawn.\nNobody came.\n")
        elif kind == "python":
            with redirect_stdout(printed):
                exec(text, {"__name__": "__main__"})
        for line in typed(text) if kind == "console" else ():
            if line.startswith("identilens "):
                printed.write(identilens(*shlex.split(line)[1:], code=0).output)
            else:
                subprocess.run(["bash", "-ec", line], check=True)
    quoted = " ".join(
        re.findall(r"^> (.*)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    )
    said = re.findall(r"[\d.,]+ %", quoted)
    shown = " ".join(printed.getvalue().split())
    assert [number for number in said if number not in shown] == []
    assert page == "docs/settings.md" or len(said) > 3
