"""Findings' numbers and what charts draw, of results whose tables are written by hand.

`python tests/golden/test_findings.py` records them again.
"""

import json
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import polars as pl
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.charts import leaves
from helpers.structures import by_hand
from helpers.written import (
    alternatives,
    answered,
    audited,
    certainty,
    decided,
    faithfulness,
    first_rows,
    identified,
    influenced,
    inverted,
    mixed,
    rolled,
    scored,
)
from identilens.studies.mixing.tagging import TAG_COLUMNS
from identilens.studies.tokens.settings import Experiment

RECORDED = Path(__file__).parent / "findings.json"


def two_stacks():
    """A text of an encoder-decoder with tags, whose source is tracked."""
    parts = [mixed(1, kind) for kind in ("encoder", "decoder", "cross")]
    table, names = (
        pl.concat([getattr(part, name) for part in parts]) for name in ("table", "token_names")
    )
    rows = [(0, place, tag) for place, tag in enumerate(("[CLS]", "JJ", "NN", "[SEP]"))]
    tags = pl.DataFrame(rows, schema=TAG_COLUMNS, orient="row")
    return replace(parts[0], table=table, token_names=names, tags=tags).tracking("sky")


CASES = {
    "audit": audited,
    "audit without rows": partial(
        audited, 1, ("encoder", "decoder"), rows=False, pearson=False, d_v=64
    ),
    "audit of a row": lambda: first_rows(audited()),
    "certify": certainty,
    "certify two kinds": partial(certainty, ((0, 0),), ("float32",), ("encoder", "decoder")),
    "answer": answered,
    "answer without rows": partial(answered, 1, bounded=0),
    "influence": influenced,
    "influence on states": partial(influenced, "states", 1, rows=False),
    "influence on an answer": partial(influenced, texts=1, answer="the sea"),
    "patterns": scored,
    "alternatives": alternatives,
    "alternatives, none": partial(alternatives, 1, found=False),
    **{f"tokens {name}": partial(identified, name) for name in get_args(Experiment)},
    "tokens, one fold": partial(identified, "across-layers", 1),
    "inversion": inverted,
    "inversion of an encoder": partial(inverted, 1, causal=False),
    "rollout": rolled,
    "rollout of rows": partial(rolled, 30, witnesses=False),
    "mixing": mixed,
    "mixing of two stacks": two_stacks,
    "structure": by_hand,
    "structure of a row": lambda: first_rows(by_hand(measured=False)),
    "faithfulness": faithfulness,
    "faithfulness, determined": partial(faithfulness, 1, determined=True),
    "faithfulness of decisions": decided,
}
"""Results of every study, by hand."""


def rounded(value):
    """A number of five digits."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def drawn(chart):
    """Mark, number of rows, and the sum of what each channel shows, of each layer."""
    spec = chart.to_dict()
    return [_layer(leaf, spec) for leaf in leaves(spec)]


def _layer(leaf, spec):
    data = leaf["data"]
    rows = spec["datasets"][data["name"]] if "name" in data else data["values"]
    channels = {}
    for channel, shown in sorted(leaf["encoding"].items()):
        field = shown.get("field") if isinstance(shown, dict) else None
        if field is not None:
            values = [row.get(field) for row in rows]
            sums = [value for value in values if isinstance(value, int | float)]
            channels[f"{channel} {field}"] = rounded(float(sum(sums)))
    return [leaf["mark"]["type"], len(rows), channels]


def said(*words):
    """The numbers in some words."""
    return [found for one in words for found in re.findall(r"\d[\d.]*\d|\d", one)]


def shown(section):
    """What a part of the report holds: numbers of its words, sums of its table and maps, and lines of tokens."""
    frame = section.frame
    sums = {one.name: one.sum() for one in frame if len(one) and one.dtype.is_numeric()}
    maps = [
        [
            *one.choices.values(),
            one.interest,
            *said(one.note),
            len(one.queries),
            len(one.keys),
            *one.differences,
            *(float(layer.nansum()) for layer in one.layers.values()),
        ]
        for one in section.maps
    ]
    lines = [said(one.html()) for one in section.lines]
    return [
        said(*section.text, section.note), len(frame), [*map(rounded, sums.values())],
        [[*map(rounded, one)] for one in maps], lines,
    ]  # fmt: skip


def findings(result):
    """Numbers of the finding, the layers of each chart, and what the report shows."""
    numbers = {name: rounded(value) for name, value in result.summary().numbers.items()}
    charts = {name: drawn(chart) for name, chart in result.charts().items()}
    sections = {one.anchor: shown(one) for one in result.sections()}
    lines = [said(result.subject()), *(said(line.text().plain) for line in result.token_lines())]
    made = {"numbers": numbers, "charts": charts, "sections": sections, "lines": lines}
    return json.loads(json.dumps(made))


@pytest.mark.parametrize("name", CASES)
def test_numbers_and_charts_are_those_recorded(name):
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert findings(CASES[name]()) == recorded[name]


def record():
    """Write the file, a line a chart."""
    parts = []
    for name, make in CASES.items():
        made = findings(make())
        charts = [
            f"   {json.dumps(one)}: {json.dumps(made['charts'][one])}" for one in made["charts"]
        ]
        others = [
            f"  {json.dumps(part)}: {json.dumps(made[part])},\n"
            for part in ("numbers", "sections", "lines")
        ]
        parts.append(
            f" {json.dumps(name)}: {{\n{''.join(others)}"
            '  "charts": {\n' + ",\n".join(charts) + "\n  }\n }"
        )
    RECORDED.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record()
