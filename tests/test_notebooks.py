"""The notebooks, cell by cell: they run, and what each shows can be shown."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def run_cell(source, names):
    """Run a cell and return the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return (
        None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_its_results(path, bundled_path):
    names, shown = {}, 0
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == []
        value = run_cell("".join(cell["source"]), names)
        if hasattr(value, "_repr_html_"):
            shown += bool(value._repr_html_())
        elif hasattr(value, "_repr_mimebundle_"):
            html = value._repr_mimebundle_()["text/html"]
            assert "://cdn" not in html
            shown += bool(html)
    assert shown >= 2


def test_there_are_four():
    assert len(NOTEBOOKS) == 4
