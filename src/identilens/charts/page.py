"""A result as one HTML file: text, charts, tables and token maps that ask nothing of the network."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any

import polars as pl
import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from identilens.charts.encoding import AnyChart
from identilens.charts.facts import citation, run_facts
from identilens.charts.labels import visible_text
from identilens.charts.packing import deflated
from identilens.charts.palette import DARK, LIGHT, theme
from identilens.charts.save import VEGA_LITE
from identilens.charts.token_lines import TokenLine
from identilens.charts.viewer import MAP_BUDGET, TokenMap, fitting, viewer_data, viewer_script
from identilens.runs.files import write_atomically

MOST_ROWS = 500
"""Rows of a table that a page shows."""


@dataclass(frozen=True)
class Section:
    """One part of a page.

    Attributes:
        anchor: Its id in the page.
        title: Its heading.
        text: Paragraphs above the charts.
        charts: Charts, or their names in the page's ``charts``.
        frame: A table below the charts.
        maps: Token maps below the table.
        note: A line at the end.
        lines: Lines of marked tokens, above the charts.
    """

    anchor: str
    title: str
    text: Sequence[str] = ()
    charts: Sequence[str | AnyChart] = ()
    frame: pl.DataFrame | None = None
    maps: Sequence[TokenMap] = ()
    note: str = ""
    lines: Sequence[TokenLine] = ()


@dataclass(frozen=True)
class Page:
    """What a page holds.

    Attributes:
        title: Heading and title of the page.
        subject: What was analysed, in a line.
        finding: The finding in plain words; a line each.
        headline: The headline numbers: value, label.
        record: Provenance of the result.
        sections: The parts, in order.
        charts: Charts that sections name.
    """

    title: str
    subject: str
    finding: Sequence[str]
    headline: Sequence[tuple[str, str]]
    record: Mapping[str, Any]
    sections: Sequence[Section]
    charts: Mapping[str, AnyChart] = field(default_factory=dict)


def write_page(page: Page, path: str | Path, *, budget: int = MAP_BUDGET) -> Path:
    """Write a page as one file, whole or not at all, and return its path.

    ``budget`` characters are spent on token maps, over all sections; the page says so where some do not fit.

    Raises:
        OutputFolderError: If the file cannot be written.
    """
    target = Path(path)
    # Lone surrogates (from file names on the command line, or broken tokens) have no UTF-8 form.
    content = render_page(page, budget=budget).encode("utf-8", "replace")
    write_atomically(target, lambda temporary: temporary.write_bytes(content))
    return target


def render_page(page: Page, *, budget: int = MAP_BUDGET) -> str:
    """Return a page as one HTML document with every script and style inside.

    Text from models and users is escaped by the template; data goes through JSON in which ``<``, ``>``, ``&`` and all
    characters beyond ASCII are escape sequences, so nothing in it can end a script element.
    """
    parts, data = _parts(page, budget)
    return environment().get_template("page.html").render(
        page=page, parts=parts, data=data, looks={"light": LIGHT.variables, "dark": DARK.variables},
        facts=run_facts(page.record), citation=citation(page.record), version=version("identilens"),
        vega=packed_vega() if data["charts"] else "", viewer=Markup(viewer_script()),
        own_file=own_file,
    )  # fmt: skip


def environment() -> Environment:
    """Return what fills the templates: text is escaped, and data holds nothing that JSON does not know."""
    made = Environment(
        loader=PackageLoader("identilens.charts", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "sort_keys": False, "separators": (",", ":")}
    return made


def own_file(name: str) -> Markup:
    """Return a script or a style sheet of ours as it is."""
    return Markup((Path(__file__).parent / "templates" / name).read_text(encoding="utf-8"))


@cache
def packed_vega() -> str:
    """Return `vega`, deflated and in base64: a third of its size."""
    return base64.b64encode(deflated(vega().encode())).decode("ascii")


@cache
def vega() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script; making it takes some seconds, once a process."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)


def _parts(page: Page, budget: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    data: dict[str, Any] = {"charts": {}, "datasets": {}, "viewers": {}, "looks": {}}
    parts = []
    for section in page.sections:
        drawn = [page.charts[chart] if isinstance(chart, str) else chart for chart in section.charts]
        figures = [
            _figure(f"{section.anchor}-{place}", chart, section.title, data) for place, chart in enumerate(drawn)
        ]
        shown = fitting(section.maps, budget)
        budget -= sum(one.characters for one in shown)
        if shown:
            data["viewers"][f"{section.anchor}-maps"] = viewer_data(shown)
        cells = [] if section.frame is None else _cells(section.frame)
        lines = [Markup(line.html()) for line in section.lines]
        parts.append({"section": section, "figures": figures, "shown": len(shown), "rows": cells, "lines": lines})
    for name, palette in (("light", LIGHT), ("dark", DARK)):
        data["looks"][name] = {**asdict(palette), "config": theme(palette is DARK)}
    return parts, data


def _figure(name: str, chart: AnyChart, section: str, data: dict[str, Any]) -> dict[str, str]:
    spec = chart.to_dict()
    data["datasets"] |= spec.pop("datasets", {})
    # Titles of Vega do not break into lines; those of the page do.
    title = spec.pop("title", "")
    words = title if isinstance(title, str) else str(title.get("text", ""))
    for unused in ("config", "$schema"):
        spec.pop(unused, None)
    # Vega makes its description the label of the element that it draws in.
    spec["description"] = spec.get("description") or words or section
    data["charts"][name] = spec
    return {"id": name, "title": words, "description": spec["description"]}


def table_html(frame: pl.DataFrame) -> str:
    """Return the first rows of a frame as a table, as pages have it, for a notebook."""
    table = environment().get_template("table.html").render(frame=frame, rows=_cells(frame))
    return f'<div class="identilens"><style>.identilens .number {{ text-align: right }}</style>{table}</div>'


def _cells(frame: pl.DataFrame) -> list[list[str]]:
    return [list(map(_cell, row)) for row in frame.head(MOST_ROWS).iter_rows()]


def _cell(value: Any) -> str:
    if value is None or value == "" or (isinstance(value, float) and not isfinite(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value))
    return f"{value:.4g}" if isinstance(value, float) else visible_text(str(value))
