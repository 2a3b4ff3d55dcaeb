"""Runs the notebooks and stores what they show, so that they can be read without running them.

Usage: python tools/notebooks.py [NOTEBOOK ...]

Needs Chromium. Tables are stored as HTML. Charts, maps and results are stored as pictures: Jupyter does not run the
scripts of a notebook that came from elsewhere, and GitHub runs none.
"""

import ast
import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import polars as pl
import torch
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).parents[1] / "notebooks"
CHROMIUM = "/usr/bin/chromium"
WIDTH, HEIGHT = 860, 1100
"""Pixels of a picture at most."""

COLORS = 112
"""Of a picture: it is small with few, and they are enough for maps and letters."""


LONGEST = 4000
"""Characters of what is stored as text."""


def picture(browser: Browser, html: str) -> str:
    """Return what a page looks like, as a PNG in base64."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
    page.set_content(
        f'<!doctype html><meta charset="utf-8"><body style="margin: 8px; font: 14px sans-serif">{html}'
    )
    page.wait_for_timeout(1500)
    high = page.evaluate("document.body.scrollHeight") + 16
    shot = page.screenshot(
        clip={"x": 0, "y": 0, "width": WIDTH, "height": min(high, HEIGHT)}, full_page=True
    )
    page.close()
    small = io.BytesIO()
    image = Image.open(io.BytesIO(shot)).convert("RGB")
    image.quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        small, "PNG", optimize=True
    )
    return base64.b64encode(small.getvalue()).decode()


def output(value: Any, count: int, browser: Browser) -> dict[str, Any]:
    """Return the output of a cell whose last expression has a value."""
    words = repr(value)
    words = words if len(words) < LONGEST else f"{type(value).__name__}(...)"
    data: dict[str, Any] = {"text/plain": words.splitlines(keepends=True)}
    if isinstance(value, pl.DataFrame):
        data["text/html"] = value._repr_html_().splitlines(keepends=True)
    elif hasattr(value, "_repr_html_"):
        data["image/png"] = picture(browser, value._repr_html_())
    elif hasattr(value, "_repr_mimebundle_"):
        data["image/png"] = picture(browser, value._repr_mimebundle_()["text/html"])
        data["text/plain"] = [f"{type(value).__name__}(...)"]
    return {"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell and return the value of its last expression; lines that begin with % are for Jupyter."""
    code = "\n".join(line for line in source.splitlines() if not line.startswith("%"))
    tree = ast.parse(code)
    shown = [one.value for one in tree.body[-1:] if isinstance(one, ast.Expr)]
    if shown:
        tree.body.pop()
    exec(compile(tree, "cell", "exec"), names)
    if not shown:
        return None
    return eval(compile(ast.Expression(shown[0]), "cell", "eval"), names)


def run(path: Path, browser: Browser) -> None:
    """Run a notebook and write it with its outputs."""
    notebook, names, count = json.loads(path.read_text(encoding="utf-8")), {}, 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        value = run_cell("".join(cell["source"]), names)
        cell["execution_count"] = count
        cell["outputs"] = [] if value is None else [output(value, count, browser)]
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{path.name}: {path.stat().st_size // 1000} kB")


def main() -> None:
    """Run the notebooks that are named, or all."""
    torch.set_num_threads(1)
    paths = [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb"))
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for path in paths:
            run(path, browser)
        browser.close()


if __name__ == "__main__":
    main()
