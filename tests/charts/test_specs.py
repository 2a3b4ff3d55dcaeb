"""What every builder of charts makes of a small frame, entry by entry: the specifications are beside this file."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
import torch

from identilens.charts.cells import heat, token_map
from identilens.charts.kit import bars, boxes, choose, intervals, lines, rule, scatter
from identilens.charts.palette import DARK, LIGHT, theme

FRAME = pl.DataFrame({
    "layer": [0, 1, 0, 1], "rate": [0.25, 0.5, 0.75, 1.0], "kind": ["b", "b", "a", "a"], "e": [0.125] * 4,
    "lo": [0.0, 0.25, 0.5, 0.75], "hi": [0.5, 0.75, 1.0, 1.0],
})  # fmt: skip
ENDS = pl.DataFrame({
    "layer": ["x", "x", "y"], "kind": ["b", "a", "b"], "low": [0.0, 1.0, 2.0], "q1": [1.0, 2.0, 3.0],
    "median": [2.0, 3.0, 4.0], "q3": [3.0, 4.0, 5.0], "high": [4.0, 5.0, 6.0],
})  # fmt: skip
MAP = torch.tensor([[0.5, 0.5], [-0.25, 1.0]])


def row_of(count):
    """A frame with one row of cells, from 0.5 on."""
    numbers = [place + 0.5 for place in range(count)]
    return pl.DataFrame({"at": range(count), "row": [0] * count, "value": numbers})


BUILT = {
    "lines": lambda: lines(FRAME, "layer", "rate", "kind", dash="kind", x_scale="log", title="T"),
    "errors": lambda: lines(FRAME, "layer", "rate", error="e", y_domain=(0, 1)),
    "scatter": lambda: scatter(FRAME, "rate", "e", "kind", span=("lo", "hi"), x_scale="sqrt"),
    "coloured": lambda: scatter(FRAME, "rate", "e", "layer", x_domain=(0, 2), also=("lo",), labels={"e": "Y"}),
    "bars": lambda: bars(FRAME, "rate", "layer", "kind"),
    "intervals": lambda: intervals(FRAME, "kind", "lo", "hi", "rate"),
    "boxes": lambda: boxes(ENDS, "layer"),
    "standing rule": lambda: rule(lines(FRAME, "layer", "rate"), x=0.5),
    "lying rule": lambda: rule(lines(FRAME, "layer", "rate"), y=0.5),
    "heat": lambda: heat(FRAME, "layer", "kind", "rate", domain=(0, 2)),
    "choice": lambda: choose(rule(lines(FRAME, "layer", "rate"), y=1), FRAME, "kind", "Kind"),
    "map": lambda: token_map({"raw": MAP, "two": MAP * 2}, ["a", "b"], ["c", ""], "Text", columns=1, side=90),
    "short title": lambda: scatter(row_of(12), "at", "value", labels={"at": "w " * 20}),
    "long title": lambda: scatter(row_of(13), "at", "value", labels={"at": f"{'w ' * 20}w", "value": "w " * 21}),
    "8 classes": lambda: scatter(row_of(8), "value", "at", "at", x_scale="log"),
    "24 cells": lambda: heat(row_of(24), "at", "row", "value"),
    "25 cells": lambda: heat(row_of(25), "at", "row", "value", domain=(-1, 1)),
    "one value": lambda: lines(row_of(1), "at", "value", y_domain=(0, 1), points=False),
    "numbers as groups": lambda: boxes(ENDS.with_columns(layer=pl.Series([2, 1, 1])), "layer"),
    "values to choose": lambda: choose(lines(FRAME, "layer", "rate"), FRAME, "kind", "Kind"),
    "no choice": lambda: choose(lines(FRAME[:2], "layer", "rate"), FRAME[:2], "kind", "Kind"),
    "long map": lambda: token_map({"": MAP[:1].expand(1, 2)}, "a", "b" * 30, "Text", side=90, domain=(-1, 2)),
    "light look": lambda: SimpleNamespace(to_dict=partial(theme, LIGHT)),
    "dark look": lambda: SimpleNamespace(to_dict=partial(theme, DARK)),
    "map of zeros": lambda: token_map({"": torch.zeros(1, 1)}, "a", "b", "Text"),
}  # fmt: skip
SPECS = Path(__file__).parent / "specs.json"


def spec_of(name):
    """Return what a builder makes, without what Altair adds to every chart."""
    made = BUILT[name]().to_dict()
    names = {held: f"data {place}" for place, held in enumerate(made.pop("datasets", {}))}
    text = json.dumps({key: part for key, part in made.items() if key not in ("$schema", "config")})
    for held, shown in names.items():
        text = text.replace(held, shown)
    return json.loads(text)


@pytest.mark.parametrize("name", BUILT)
def test_every_entry_of_a_specification(name):
    assert spec_of(name) == json.loads(SPECS.read_text("utf-8"))[name]


if __name__ == "__main__":
    written = (f"{json.dumps(name)}: {json.dumps(spec_of(name))}" for name in BUILT)
    SPECS.write_text("{\n" + ",\n".join(written) + "\n}\n", "utf-8")
