"""A reproduction: how it is made, and its files: tables, charts, and a page with the findings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.save import check_formats, save_charts
from identilens.runs.files import write_atomically, write_json, write_table, write_text
from identilens.runs.provenance import Identity, command_line, provenance
from identilens.runs.settings import Settings


@dataclass(frozen=True)
class Reproduction:
    """A reproduction of a published table or figure.

    Attributes:
        name: Name on the command line, such as ``wen2023-figure1``.
        source: Paper and number, such as "Wen et al. 2023, Figure 1".
        settings: All settings that change the numbers; JSON types only.
        tables: Tables by file name without ending.
        findings: Markdown: measured and published numbers, and where and why they differ.
        charts: Charts by file name without ending.
        seed: Seed of the random numbers, if any are drawn.
    """

    name: str
    source: str
    settings: Mapping[str, Any]
    tables: Mapping[str, pl.DataFrame]
    findings: str
    charts: Mapping[str, AnyChart] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True)
class Recipe:
    """The parts of a reproduction's command.

    ``make`` is called with ``(settings, out, *, resume, overwrite, progress)``, and with ``engine`` if workers can
    share its runs; runs that can be resumed are in folders under ``out``. The first line of its docstring is the
    command's help.

    Attributes:
        settings_type: Class of its options.
        make: Function that runs it.
        unit: The unit that progress counts.
        shared: Whether workers can share its runs.
    """

    settings_type: type[Settings]
    make: Callable[..., Reproduction]
    unit: str = "steps"
    shared: bool = False


def write_reproduction(result: Reproduction, out: str | Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write a reproduction into a folder and return the paths.

    Tables are written as Parquet and CSV, charts in each format, settings, command and findings to ``README.md``, and
    the provenance to ``provenance.json``. Files of the same names are replaced; other files are not changed.

    Raises:
        InputError: For a format that is not supported; then nothing is written.
        OutputFolderError: If the folder cannot be written.
    """
    folder, endings, paths = Path(out), check_formats(formats), []
    for name, table in result.tables.items():
        paths += [folder / f"{name}.parquet", folder / f"{name}.csv"]
        write_table(paths[-2], table)
        write_atomically(paths[-1], table.write_csv)
    drawn = save_charts(result.charts, folder, endings)
    shown = [path.name for path in drawn if path.suffix == f".{endings[0]}"]
    write_text(folder / "README.md", _page(result, shown))
    record = provenance(result.name, Identity({"name": result.source}, [], seed=result.seed), result.settings)
    write_json(folder / "provenance.json", {**record, "finished": True})
    return [*paths, *drawn, folder / "README.md", folder / "provenance.json"]


def _page(result: Reproduction, images: Sequence[str]) -> str:
    settings = "\n".join(f"- {name}: {value}" for name, value in result.settings.items())
    seed = "" if result.seed is None else f"\n- seed: {result.seed}"
    figures = "\n\n".join(f"![{name.rpartition('.')[0]}]({name})" for name in images)
    command = "    " + " ".join(command_line() or ["identilens", "reproduce", result.name])
    tables = "Tables: " + ", ".join(f"[{name}.csv]({name}.csv)" for name in result.tables) + "."
    parts = [f"# {result.source}", command, result.findings.strip(), figures, "## Settings", settings + seed, tables]
    return "\n\n".join(part for part in parts if part) + "\n"
