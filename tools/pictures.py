"""Makes what the documentation shows: the outputs of the notebooks, and the story of its first page with its picture.

    python tools/pictures.py [story] [tasks] [NOTEBOOK ...]

Needs Chromium. The pages of the tasks show results (docs/images/TASK.png). A notebook's tables are stored as HTML; its
charts, maps and results as pictures: Jupyter does not run the scripts of a notebook that came from elsewhere, and
GitHub runs none.

The story is one row of attention of the bundled decoder, another row with the same prediction, and what two questions
say of them. The picture goes to docs/images/story.svg; the figures are printed as the pages write them.
"""

import ast
import base64
import io
import json
import sys
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Any

import polars as pl
import torch
from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from torch import Tensor

import identilens as idl
from identilens.charts.kit import bars
from identilens.charts.labels import visible_text
from identilens.charts.save import save_charts
from identilens.demo.examples import STORY

ROOT = Path(__file__).parents[1]
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


def run_notebook(path: Path, browser: Browser) -> None:
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


LAYER, HEAD = 2, 7
KEPT = "0.001nats"
IMAGES = ROOT / "docs" / "images"


@dataclass(frozen=True)
class Rows:
    """The last row of the head, another one with the same prediction, and how much this changes it.

    Attributes:
        tokens: One for each key.
        model: Weights that the model computes.
        other: Weights of the other row.
        change: Of the prediction, in nats, measured in the model.
        words: The most likely next word with either row.
        broken: Change of the prediction where the largest weight goes to the other keys, in their proportions.
        broken_word: The most likely next word then.
    """

    tokens: tuple[str, ...]
    model: list[float]
    other: list[float]
    change: float
    words: tuple[str, str]
    broken: float
    broken_word: str


def rows_of(lens: Any) -> Rows:
    """Return both rows."""
    place = {"layers": LAYER, "heads": HEAD, "progress": False}
    found = idl.alternatives(lens, STORY, outcome="prediction", tolerance=KEPT, **place)
    key = f"text0.layer{LAYER}.head{HEAD}.decoder"
    maps = [
        found.matrices[f"{key}.{name}"]
        for name in ("raw", f"alternative_{found.table['alternative'].item()}")
    ]
    broken = maps[0].clone()
    broken[-1, broken[-1].argmax()] = 0
    broken[-1] /= broken[-1].sum()
    with torch.no_grad():
        before, after, without = (
            predicted(lens, {(LAYER, HEAD): one}).double() for one in (*maps, broken)
        )
    return Rows(
        tokens=lens.read([STORY])[0].tokens["encoder"],
        model=maps[0][-1].tolist(),
        other=maps[1][-1].tolist(),
        change=found.table["measured"].item(),
        words=(next_word(lens, before), next_word(lens, after)),
        broken=(before * (before / without).log()).sum().item(),
        broken_word=next_word(lens, without),
    )


def predicted(lens: Any, weights: dict[tuple[int, int], Tensor]) -> Tensor:
    """Return the distribution of the next token with given weights."""
    return lens.substitute(weights, STORY).logits[-1].softmax(-1)


def next_word(lens: Any, distribution: Tensor) -> str:
    """Return the most likely token."""
    return lens.tokenizer.decode([distribution.argmax().item()]).strip()


def measured(lens: Any, rows: Rows) -> dict[str, str]:
    """Return every figure of the story, written as on the page."""
    place = {"layers": LAYER, "heads": HEAD, "queries": "last", "progress": False}
    opened, moved = len(rows.tokens) - 2, 4
    effects = idl.influence(lens, STORY, answer="last", progress=False)
    most = effects.summary().numbers
    head = idl.certify(lens, STORY, tolerance="1%", **place)
    answer = idl.certify(lens, STORY, outcome="prediction", tolerance=KEPT, **place)
    by_head, by_answer = (one.table.filter(key=opened).row(0, named=True) for one in (head, answer))
    return {
        "most of its attention": f"{rows.model[opened]:.2f} on “{rows.tokens[opened].strip()}”",
        "most of the other row": f"{rows.other[moved]:.2f} on “{rows.tokens[moved].strip()}”",
        "change of the prediction": f"{rows.change:.2g} nats",
        "without its largest weight": f"{rows.broken:.3f} nats",
        "next word then": f"“{rows.broken_word}”",
        "next word": " and ".join(f"“{word}”" for word in dict.fromkeys(rows.words)),
        "head with the largest effect": f"head {most['head']} of layer {most['layer']}",
        "effect": f"{most['effect']:.3f} nats",
        "in times of that change": f"{most['effect'] / rows.change:.0f} times",
        "by the head's output": f"{by_head['lo']:.2f} to {by_head['hi']:.2f}",
        "verdict by the head's output": by_head["verdict"].split(",")[0],
        "up to": f"{floor(1000 * by_head['radius']) / 10} %",
        "by the prediction": f"{by_answer['lo']:.2f} to {by_answer['hi']:.2f}",
        "verdict by the prediction": by_answer["verdict"].split(",")[0],
    }


def draw(rows: Rows) -> None:
    """Draw both rows side by side."""
    names = [f"{visible_text(token)} {place}" for place, token in enumerate(rows.tokens)]
    both = {
        "the map that the model computes": rows.model,
        "another map, same prediction to 0.001 nats": rows.other,
    }
    cells = [
        {"token": name, "map": title, "weight": weights[place]}
        for place, name in enumerate(names)
        for title, weights in both.items()
    ]
    chart = bars(
        pl.DataFrame(cells),
        "token",
        "weight",
        "map",
        labels={"token": "Token", "weight": "Attention weight", "map": ""},
        title=f"Attention of the last token, layer {LAYER}, head {HEAD}",
        height=170,
    )
    save_charts({"story": chart}, IMAGES, ("svg",))


TASKS = {
    "certify": "idl.certify(lens, text, layers=3, heads=9, queries='tailor').charts()['intervals']",
    "answer": "idl.answer(decoder, {'prompt': text, 'segments': {'weather': '0:60'}}, max_new_tokens=8)",
    "influence": "idl.influence(decoder, text).charts()['effects']",
    "patterns": "idl.patterns(decoder, text, rows=2, pattern='previous').charts()['scores']",
    "faithfulness": "idl.faithfulness(lens, text, rows=1, groups=(1, 2, 4))",
    "unchanged": "idl.alternatives(lens, text, layers=3, heads=5)",
    "audit": "idl.audit(lens, text).charts()['certain_and_influential']",
    "viewer": "idl.audit(lens, text).view(text=0, layer=3, head=9)",
    "notebook": "idl.certify(lens, text, layers=3, heads=9, queries='tailor')",
}
"""What the page of each task shows."""


def show_tasks(browser: Browser) -> None:
    """Draw the result of each task."""
    names = {
        "idl": idl,
        "lens": idl.load("bundled"),
        "decoder": idl.load("bundled-decoder"),
        "text": idl.examples()[0],
    }
    for task, code in TASKS.items():
        shown = output(run_cell(code, names), 1, browser)["data"]["image/png"]
        (IMAGES / f"{task}.png").write_bytes(base64.b64decode(shown))


def tell_story() -> None:
    """Print the figures of the story and draw its picture."""
    lens = idl.load("bundled-decoder")
    rows = rows_of(lens)
    for what, said in measured(lens, rows).items():
        print(f"{what}: {said}")
    draw(rows)


def main() -> None:
    """Make what is named, or all."""
    torch.set_num_threads(1)
    given = sys.argv[1:] or [
        "story",
        "tasks",
        *map(str, sorted((ROOT / "notebooks").glob("*.ipynb"))),
    ]
    if "story" in given:
        tell_story()
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in given:
            if name == "tasks":
                show_tasks(browser)
            elif name != "story":
                run_notebook(Path(name), browser)
        browser.close()


if __name__ == "__main__":
    main()
