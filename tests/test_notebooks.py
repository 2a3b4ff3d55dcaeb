"""The notebooks, cell by cell: they run, what each shows can be shown, and is stored as it is."""

import json
import re
import runpy
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

ROOT = Path(__file__).parents[1]
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
