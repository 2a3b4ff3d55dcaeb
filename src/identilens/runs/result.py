"""The base class of all results: tables with a schema, provenance, a finding, charts; saving, loading and showing."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import polars as pl
from rich.console import Console

from identilens.charts.kit import Charts
from identilens.charts.labels import said
from identilens.charts.notebook import folded_maps
from identilens.charts.page import Section, citation, render_page, table_html
from identilens.charts.save import save_charts
from identilens.charts.token_lines import TokenLine, notebook_html
from identilens.charts.viewer import TokenMap
from identilens.charts.views import View
from identilens.runs.files import Manifest, write_text
from identilens.runs.folder import Output, RunFolder
from identilens.runs.matrices import Matrices, Tokens, stored_matrices
from identilens.runs.provenance import Record, subject
from identilens.runs.reading import finished_record, read_table
from identilens.runs.tables import Columns, Tables, print_table
from identilens.runs.terminal import plain

R = TypeVar("R", bound="Result")

_BIBTEX = """\
@software{{identilens,
  author = {{{{The identilens developers}}}},
  title = {{identilens: what a transformer's attention determines, and what has an effect}},
  version = {{{version}}},
  year = {{2026}}
}}"""


@dataclass(frozen=True)
class Finding:
    """The main results of a study: sentences, one per line; numbers by name; values with labels for large type."""

    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    headline: Sequence[Sequence[str]] = ()

    @classmethod
    def of(cls, lines: str, tiles: str = "", **numbers: Any) -> "Finding":
        """Return templates filled with numbers; see `said`. ``tiles``: a value and its label a line, " | " between."""
        # NaN is not equal to itself.
        known = {name: value if value == value else None for name, value in numbers.items()}
        headline = [line.split(" | ") for line in said(tiles, known)]
        return cls("\n".join(said(lines, known)), known, headline)


@dataclass(frozen=True, kw_only=True)
class Result(ABC):
    """All numbers of one run. A subclass adds a field for each further table of its schema.

    Attributes:
        analysis: Name of the study.
        title: Heading of its report.
        schema: Columns of each table, by the table's name.
        words: What columns are called, with their unit, and after a colon what they mean: "Effect (nats): change ...".
        views: Charts and tables of the report, by name.
        table: The main table.
        provenance: Model, texts, settings and versions of the run.
        matrices: Saved matrices, by name; read from disk when they are accessed.
        tokens: Tokens of the texts with saved matrices, by sequence.
        folder: Folder from which the result was read; None for a result in memory.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> import tempfile
        >>> from pathlib import Path
        >>> folder = Path(tempfile.mkdtemp())
        >>> result = idl.audit(lens, "Nobody came.", layers=3, certain_rows=0, examples=0)
        >>> print(result.summary().text.splitlines()[0])
        Certain: not looked at in 12 maps. Choose rows with --certain-rows 4 (in Python: certain_rows=4).
        >>> result.title, list(result.overview())
        ('Attention audit', ['Means by layer'])
        >>> result.save(folder / "run")
        >>> type(result).load(folder / "run").table.equals(result.table)
        True
        >>> result.to_html(folder / "report.html").name, [file.name for file in result.to_csv(folder)]
        ('report.html', ['table.csv', 'rows.csv', 'effects.csv', 'token_types.csv'])
        >>> result.subject(), [section.title for section in result.sections()][:2]
        ('bundled on 1 text', ['Means by layer', 'Layer by layer, head by head'])
        >>> result.token_lines(), result.notebook_maps()
        ((), [])
        >>> len(result.save_figures(folder / "figures", formats=["svg"])) == len(result.charts())
        False
        >>> result.to_json()[:19], result.cite().splitlines()[-1]
        ('{"study": "audit", ', '}')
        >>> result.show()
        Certain: not looked ...
        >>> type(result).of({"table": result.table}, result.provenance).table.shape == result.table.shape
        True
    """

    analysis: ClassVar[str]
    title: ClassVar[str]
    schema: ClassVar[Mapping[str, Columns]]
    words: ClassVar[Mapping[str, str]] = {}
    views: ClassVar[Mapping[str, View]] = {}

    table: pl.DataFrame
    provenance: Record
    matrices: Matrices = field(default_factory=dict, repr=False)
    tokens: Mapping[int, Tokens] = field(default_factory=dict, repr=False)
    folder: Path | None = field(default=None, compare=False)

    def __init_subclass__(cls) -> None:
        cls.__repr__ = Result.__repr__  # otherwise a dataclass generates one that prints all tables

    def __repr__(self) -> str:
        sizes = [f"{name} of {len(getattr(self, name)):,} rows" for name in self.schema]
        return f"{type(self).__name__}: {self.summary().text}\n{', '.join(sizes)}"

    @abstractmethod
    def summary(self) -> Finding:
        """Return the finding."""

    def charts(self) -> Charts:
        """Return the charts by name, for notebooks, reports and print."""
        charts: Charts = {}
        for name, view in self.views.items():
            charts |= view.charts(name, self)
        return charts

    def overview(self) -> Tables:
        """Return the tables that are printed below the finding, by title."""
        for view in self.views.values():
            if view.listed:
                return {"".join(self.said(view.title)): view.frame(self)}
        return {"Table": self.table}

    def token_lines(self) -> Sequence[TokenLine]:
        """Return lines of marked tokens, shown above the tables; empty for most results."""
        return ()

    def notebook_maps(self) -> Sequence[TokenMap]:
        """Return the maps that a notebook shows below the finding; empty for most results."""
        return ()

    def to_csv(self, folder: str | Path) -> list[Path]:
        """Write every table as a CSV file into a folder and return the paths; columns of lists are left out."""
        paths = []
        for name in self.schema:
            frame = getattr(self, name).select(~pl.selectors.list())
            paths.append(Path(folder) / f"{name}.csv")
            write_text(paths[-1], frame.write_csv())
        return paths

    def to_json(self, **also: Any) -> str:
        """Return the finding, its numbers, every table, the citation and more as JSON; what is not finite is null."""
        finding = self.summary()
        numbers = {
            name: None if isinstance(value, float) and not isfinite(value) else value
            for name, value in finding.numbers.items()
        }
        tables = {name: json.loads(getattr(self, name).write_json()) for name in self.schema}
        written = {
            "study": self.analysis,
            "subject": self.subject(),
            "finding": finding.text,
            "numbers": numbers,
            "tables": tables,
            "citation": citation(self.provenance),
            **also,
        }
        return json.dumps(written, allow_nan=False, default=float)

    def cite(self) -> str:
        """Return a sentence that identifies the run in a paper, and a BibTeX entry of identilens."""
        number = self.provenance.get("libraries", {}).get("identilens", "")
        return f"{citation(self.provenance)}\n\n{_BIBTEX.format(version=number)}"

    def sections(self) -> list[Section]:
        """Return the sections of the report below the finding: its views."""
        sections = [view.section(name, self) for name, view in self.views.items()]
        return [section for section in sections if section is not None]

    @cached_property
    def _numbers(self) -> Mapping[str, Any]:
        return self.summary().numbers

    def said(self, template: str) -> list[str]:
        """Return the lines of a template, filled with the numbers of the finding."""
        return said(template, self._numbers)

    def label(self, column: str) -> str:
        """Return what a column is called, with its unit."""
        return self.meaning(column).partition(": ")[0]

    def meaning(self, column: str) -> str:
        """Return what a column is called and, after a colon, what it means."""
        plain = column.replace("_", " ").capitalize()
        return "".join(self.said(self.words.get(column, plain)))

    def subject(self) -> str:
        """Return one line with the model and the number of texts."""
        return subject(self.provenance)

    def show(self) -> None:
        """Print the finding, lines of tokens and the overview."""
        Console().print(plain(self.summary().text), "")
        for line in self.token_lines():
            Console().print(line.text())
        for title, frame in self.overview().items():
            print_table(title, frame)

    @classmethod
    def of(cls: type[R], tables: Tables, record: Record, **fields: Any) -> R:
        """Return the result with these tables and other fields; a missing table is empty."""
        frames = {
            name: tables.get(name, pl.DataFrame(schema=columns)).cast(pl.Schema(columns))
            for name, columns in cls.schema.items()
        }
        return cls(**frames, provenance=record, **fields)

    def save(self, folder: str | Path) -> None:
        """Write the result as a folder that `load` reads; the provenance is written last.

        Raises:
            OutputFolderError: If the folder contains another run or other files, or cannot be written.
        """
        tables = {name: getattr(self, name) for name in self.schema}
        with RunFolder.open(Path(folder), self.provenance, resume=True) as run:
            run.finish(Output(tables, self.matrices, self.tokens))

    @classmethod
    def load(cls: type[R], folder: str | Path) -> R:
        """Return the result of a folder; matrices are read when they are accessed.

        Raises:
            OutputFolderError: If the folder contains no finished run of this kind, or a damaged file, which is named.
        """
        path = Path(folder)
        record, manifest = finished_record(path, cls.analysis), Manifest(path)
        stored, tokens = stored_matrices(manifest)
        tables = {
            name: read_table(path / f"{name}.parquet", columns)
            for name, columns in cls.schema.items()
            if name == "table" or f"{name}.parquet" in manifest.names
        }
        return cls.of(tables, record, matrices=stored, tokens=tokens, folder=path)

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one self-contained HTML file and return its path.

        Raises:
            OutputFolderError: If the file cannot be written.
        """
        target = Path(path)
        write_text(target, render_page(self))
        return target

    def save_figures(
        self, folder: str | Path, formats: Sequence[str] = ("png", "svg", "pdf")
    ) -> list[Path]:
        """Write every chart for print as png, svg or pdf and return the paths; existing files are replaced.

        Raises:
            InputError: For a format that is not supported.
            OutputFolderError: If the folder cannot be written.
        """
        return save_charts(self.charts(), folder, formats)

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{escape(line)}</p>" for line in self.summary().text.splitlines())
        lines += notebook_html(self.token_lines()) + folded_maps(self.notebook_maps())
        return lines + "".join(map(table_html, list(self.overview().values())[:1]))
