"""A result as one HTML file: text, charts, tables and token maps that ask nothing of the network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.figures import document, figure, looks, packed_vega
from identilens.charts.labels import said
from identilens.charts.token_lines import TokenLine
from identilens.charts.viewer import MAP_BUDGET, TokenMap, fitting, viewer_data

_IN_NOTEBOOK = """.identilens { overflow-x: auto }
.identilens td, .identilens th { padding: 0.2em 0.7em }
.identilens .number { text-align: right }"""

MOST_ROWS = 500
"""Rows of a table that a page shows."""


@dataclass(frozen=True)
class Section:
    """One part of a page.

    Attributes:
        anchor: Its id in the page.
        title: Its heading.
        text: Paragraphs above the charts.
        charts: Its charts.
        frame: A table below the charts; columns in which no row has a value are left out.
        maps: Token maps below the table.
        note: A line at the end.
        lines: Lines of marked tokens, above the charts.
        labels: What columns of the table are called, where it is not their name.
    """

    anchor: str
    title: str
    text: Sequence[str] = ()
    charts: Sequence[AnyChart] = ()
    frame: pl.DataFrame = field(default_factory=pl.DataFrame)
    maps: Sequence[TokenMap] = ()
    note: str = ""
    lines: Sequence[TokenLine] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


def render_page(result: Any) -> str:
    """Return the report of a result as one HTML document with every script and style inside.

    Text from models and users is escaped by the template; data goes through JSON in which ``<``, ``>``, ``&`` and all
    characters beyond ASCII are escape sequences, so nothing in it can end a script element. `MAP_BUDGET` characters are
    spent on token maps, over all sections; the page says so where some do not fit.
    """
    data: dict[str, Any] = {"charts": {}, "datasets": {}, "viewers": {}, "looks": looks()}
    parts, budget = [], MAP_BUDGET
    for section in result.sections():
        shown = fitting(section.maps, budget)
        budget -= sum(view.characters for view in shown)
        if shown:
            data["viewers"][f"{section.anchor}-maps"] = viewer_data(shown)
        frame = section.frame
        frame = frame.select(column for column in frame if column.null_count() < frame.height)
        figures = [
            figure(f"{section.anchor}-{number}", chart, section.title, data)
            for number, chart in enumerate(section.charts)
        ]
        parts.append(
            {
                "section": section,
                "figures": figures,
                "shown": len(shown),
                "frame": frame.head(MOST_ROWS),
            }
        )
    return document(
        "page.html",
        result=result,
        finding=result.summary(),
        parts=parts,
        data=data,
        facts=run_facts(result.provenance),
        citation=citation(result.provenance),
        version=version("identilens"),
        vega=packed_vega() if data["charts"] else "",
    )


def table_html(frame: pl.DataFrame) -> str:
    """Return the first rows of a frame as a table, as pages have it, for a notebook."""
    table = document("table.html", frame=frame.head(MOST_ROWS), labels={})
    return f'<div class="identilens"><style>{_IN_NOTEBOOK}</style>{table}</div>'


def run_facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what made a result as pairs of label and value, from its provenance; whatever was not set is left out."""
    facts = {
        **{f"model_{name}": value for name, value in record["model"].items()},
        "number_of_texts": record["texts"]["count"],
        **record["settings"],
        "seed": record["seed"],
        "libraries": ", ".join(f"{name} {number}" for name, number in record["libraries"].items()),
        "python": f"{record['python']} on {record['platform']}",
        "processor": record["processor"],
        "fingerprint_of_the_run": record["fingerprint"],
    }
    return [
        (name.replace("_", " ").capitalize(), str(value))
        for name, value in facts.items()
        if value not in (None, (), [])
    ]


def citation(record: Mapping[str, Any]) -> str:
    """Return one line that identifies a run in a paper."""
    model = record["model"]
    subject = f" of {model['name']}" if model.get("name") else ""
    weights = f" (parameters {model['digest'][:25]})" if model.get("digest") else ""
    [texts] = said("{count:text}", record["texts"])
    return (
        f"identilens {record['libraries']['identilens']}: {record['analysis']}{subject}{weights} on {texts}, run "
        f"{record['fingerprint'][:16]}."
    )
