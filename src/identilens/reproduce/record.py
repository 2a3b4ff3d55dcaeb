"""The files of a reproduction: tables, charts, and a page with the findings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import Charts
from identilens.charts.save import save_charts
from identilens.reproduce.registry import REPRODUCTIONS
from identilens.runs.files import write_json, write_text
from identilens.runs.provenance import Identity, provenance
from identilens.runs.result import Result
from identilens.runs.tables import Tables, markdown_text


@dataclass(frozen=True)
class Reproduction:
    """The result of repeating a published table or figure.

    Attributes:
        settings: All settings that change the numbers; JSON types only.
        tables: Tables by file name without ending.
        findings: Markdown: measured and published numbers, and where and why they differ.
        charts: Charts by file name without ending.
    """

    settings: Mapping[str, Any]
    tables: Tables
    findings: str
    charts: Mapping[str, AnyChart] = field(default_factory=dict)


def chosen_charts(result: Result, *beginnings: str) -> Charts:
    """Return the charts of a result whose names begin so."""
    return {name: chart for name, chart in result.charts().items() if name.startswith(beginnings)}


def write_reproduction(name: str, result: Reproduction, folder: Path) -> None:
    """Write a reproduction into a folder.

    Tables are written as CSV, charts as PNG and SVG, settings and findings to ``README.md``, and the
    provenance to ``provenance.json``. Files of the same names are replaced; other files are not changed.

    Args:
        name: Name on the command line, such as ``wen2023-figure1``.
        result: The reproduction.
        folder: Folder to write to.

    Raises:
        OutputFolderError: If the folder cannot be written.
    """
    for table, frame in result.tables.items():
        write_text(folder / f"{table}.csv", frame.write_csv())
    drawn = save_charts(result.charts, folder, ("png", "svg"))
    images = [path for path in drawn if path.suffix == ".png"]
    used = [f"- {name}: {markdown_text(value)}" for name, value in result.settings.items()]
    parts = [
        f"# {name}: {REPRODUCTIONS[name]}",
        f"    identilens reproduce {name}  # with the settings below",
        result.findings.strip(),
        "\n\n".join(f"![{path.stem}]({path.name})" for path in images),
        "## Settings",
        "\n".join(used),
        "Tables: " + ", ".join(f"[{table}.csv]({table}.csv)" for table in result.tables) + ".",
    ]
    write_text(folder / "README.md", "\n\n".join(filter(None, parts)) + "\n")
    record = provenance(name, Identity({}, []), result.settings)
    write_json(folder / "provenance.json", {**record, "finished": True})
