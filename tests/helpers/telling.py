"""All that a result says and draws, as one text that a test compares with a file beside it."""

import re
import sys
from pathlib import Path
from runpy import run_path

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.charts import leaves, look

_MOST = 8


def told(result):
    """Return finding, overview, charts with their data, and the parts of the report, as lines."""
    said = result.summary()
    lines = [f"subject: {result.subject()}", *said.text.splitlines()]
    lines += [f"headline: {value} | {label}" for value, label in said.headline]
    lines += [f"number: {name} = {_value(value)}" for name, value in said.numbers.items()]
    for title, frame in result.overview().items():
        lines += [f"overview: {title}", *_indented(_table(frame))]
    for name, chart in result.charts().items():
        lines += [f"chart: {name}", *_indented([*look(chart), *_data(chart)])]
    for section in result.sections():
        lines += [f"section: {section.anchor}, {section.title}", *_indented(_parts(section))]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def recorded(test, name):
    """Return what was recorded under a name in the file beside a test; to record again, run this file on its folder."""
    parts = (Path(test).parent / "written.txt").read_text("utf-8").split("=== ")
    return dict(part.split("\n", 1) for part in parts[1:])[name]


def _parts(section):
    for paragraph in section.text:
        numbers = re.findall(r"\d[\d.,]*", paragraph)
        yield f"text: {' '.join(paragraph.split()[:6])} … {' '.join(numbers)}"
    for chart in section.charts:
        if isinstance(chart, str):
            yield f"chart: {chart}"
        else:
            yield from ["chart", *_indented([*look(chart), *_data(chart)])]
    for line in section.lines:
        yield f"line: {line.text().plain!r}"
    if section.frame is not None:
        yield from ["table", *_indented(_table(section.frame))]
    for one in section.maps[:_MOST]:
        yield f"map: {list(one.choices.values())} of {list(one.layers)}, {_value(one.interest)}"
        yield f"    {' '.join(one.queries)} | {' '.join(one.keys)} | {one.note}"
    if section.note:
        yield f"note: {section.note}"


def _data(chart):
    """Return the rows that a chart draws, each set of them once."""
    spec, seen = chart.to_dict(), []
    for leaf in leaves(spec):
        data = leaf["data"]
        rows = spec["datasets"][data["name"]] if "name" in data else data["values"]
        if rows not in seen:
            seen.append(rows)
            yield f"rows: {len(rows)}, {' '.join(rows[0] if rows else ())}"
            shown = [
                " | ".join(_value(value) for name, value in row.items() if name != "_picture")
                for row in rows[:_MOST]
            ]
            yield from _indented(shown)


def _table(frame):
    yield " | ".join(frame.columns)
    yield from (" | ".join(map(_value, row)) for row in frame.head(_MOST).rows())
    yield f"{len(frame)} rows"


def _value(value):
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _indented(lines):
    return [f"    {line}" for line in lines]


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        cases = run_path(str(folder / "test_written.py"))["CASES"]
        texts = [f"=== {name}\n{told(make())}" for name, make in cases.items()]
        (folder / "written.txt").write_text("".join(texts), "utf-8")
