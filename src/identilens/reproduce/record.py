"""What a reproduction leaves behind: tables, figures, and a page that says how they were made and what they show."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from identilens.report.paper import check_formats, save_sheets
from identilens.results.files import write_atomically, write_json, write_table, write_text
from identilens.results.provenance import provenance


@dataclass(frozen=True)
class Reproduction:
    """A published table or figure, made again.

    Attributes:
        name: As on the command line, such as ``wen2023-figure1``.
        source: Paper and number, such as "Wen et al. 2023, Figure 1".
        settings: Everything that changes the numbers; JSON types only.
        tables: By file name without ending.
        figures: By file name without ending; each is drawn when it is written.
        findings: Markdown: measured beside published, and where and why they differ.
        seed: Of the random numbers, where any are drawn.
    """

    name: str
    source: str
    settings: Mapping[str, Any]
    tables: Mapping[str, pl.DataFrame]
    findings: str
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)
    seed: int | None = None


def write_reproduction(found: Reproduction, out: str | Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write a reproduction into a folder and return the paths.

    Tables as Parquet and CSV, figures in each format, ``README.md`` with settings, command and findings, and
    ``provenance.json``. What lay there under the same names is replaced; nothing else is touched.

    Raises:
        InputError: For a format that is not supported; nothing is written then.
        OutputFolderError: If the folder cannot be written.
    """
    folder, wanted, paths = Path(out), check_formats(formats), []
    for name, table in found.tables.items():
        write_table(folder / f"{name}.parquet", table)
        write_atomically(folder / f"{name}.csv", table.write_csv)
        paths += [folder / f"{name}.parquet", folder / f"{name}.csv"]
    paths += save_sheets(((name, draw()) for name, draw in found.figures.items()), folder, wanted)
    write_text(folder / "README.md", _page(found, wanted[0]))
    record = provenance(
        found.name, model={"name": found.source}, texts=[], settings=dict(found.settings), seed=found.seed
    )
    write_json(folder / "provenance.json", {**record, "finished": True})
    return [*paths, folder / "README.md", folder / "provenance.json"]


def command_line() -> str:
    """Return the command that runs now, as a user would type it."""
    return " ".join(["identilens", *sys.argv[1:]])


def _page(found: Reproduction, kind: str) -> str:
    settings = "\n".join(f"- {name}: {value}" for name, value in found.settings.items())
    seed = "" if found.seed is None else f"\n- seed: {found.seed}"
    figures = "\n\n".join(f"![{name}]({name}.{kind})" for name in found.figures)
    parts = [
        f"# {found.source}",
        f"    {command_line()}",
        found.findings.strip(),
        figures,
        "## Settings",
        settings + seed,
        "Tables: " + ", ".join(f"[{name}.csv]({name}.csv)" for name in found.tables) + ".",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
