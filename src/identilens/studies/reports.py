"""Results, reports and figures of the run that a folder contains, whichever study it is of."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from identilens.charts.page import LINK, Section
from identilens.errors import OutputFolderError
from identilens.runs.files import Manifest, as_path, recording
from identilens.runs.folder import joined_runs
from identilens.runs.matrices import MatrixKey
from identilens.runs.provenance import Record
from identilens.runs.reading import read_record
from identilens.runs.result import Result
from identilens.studies.registry import STUDIES, study_named


def load_result(folder: str | Path) -> Result:
    """Return the result that a folder contains.

    Raises:
        OutputFolderError: If the folder contains no finished run.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> import tempfile
        >>> from pathlib import Path
        >>> folder = Path(tempfile.mkdtemp()) / "run"
        >>> audit = idl.audit(lens, "Nobody came.", layers=3, certain_rows=0, examples=0, out=folder)
        >>> idl.load_result(folder).table.equals(audit.table)
        True
    """
    path = as_path(folder)
    record = read_record(path)
    if record is None or record["analysis"] not in STUDIES:
        raise OutputFolderError(
            f"{path} contains no result of identilens. Pass the folder given to --out ({', '.join(STUDIES)})."
        )
    return study_named(record["analysis"]).result_type.load(path)


def write_report(folder: str | Path, path: str | Path | None = None) -> Path:
    """Write the HTML report of the run that a folder contains, with the runs joined to it, and return its path.

    It is report.html in the folder where no other is given.

    Raises:
        OutputFolderError: If the folder contains no finished run, or the file cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> import tempfile
        >>> from pathlib import Path
        >>> folder = Path(tempfile.mkdtemp()) / "run"
        >>> audit = idl.audit(lens, "Nobody came.", layers=3, certain_rows=0, examples=0, out=folder)
        >>> idl.write_report(folder).name
        'report.html'
    """
    result = load_result(folder)
    place = as_path(folder)
    with recording(Manifest(place)):
        joined = joined_results(place, result.provenance)
        more = [section for one in joined for section in _apart(one)]
        said = [f"{_opening(one)} {one.summary().text.splitlines()[0]}" for one in joined]
        return result.to_html(path or place / "report.html", more=more, said=said)


def joined_results(folder: Path, record: Record) -> list[Result]:
    """Return the finished results that lie beneath the folder of a run with this record, those of one study as one.

    Texts that the run contains keep their numbers; others are counted on from there.
    """
    numbers = {
        digest: index for index, digest in reversed(list(enumerate(record["texts"]["sha256"])))
    }
    later = record["texts"]["count"]
    by_analysis: dict[str, list[Result]] = {}
    finished = [path for path in joined_runs(folder) if (read_record(path) or {}).get("finished")]
    for one in map(load_result, finished):
        digests = one.provenance["texts"]["sha256"]
        for digest in digests:
            if digest not in numbers:
                numbers[digest], later = later, later + 1
        places = {index: numbers[digest] for index, digest in enumerate(digests)}
        text = pl.col("text").replace_strict(places, return_dtype=pl.Int64)
        tables = {name: getattr(one, name).with_columns(text) for name in one.schema}
        for name, frame in tables.items():
            if LINK in frame.columns and one.folder is not None:
                beneath = pl.format("{}/{}", pl.lit(one.folder.name), LINK)
                tables[name] = frame.with_columns(beneath.alias(LINK))
        matrices = {}
        for name in one.matrices:
            key = MatrixKey.parse(name)
            matrices[str(replace(key, text=places[key.text])) if key else name] = one.matrices[name]
        tokens = {places[number]: names for number, names in one.tokens.items()}
        by_analysis.setdefault(one.analysis, []).append(
            type(one).of(tables, one.provenance, matrices, tokens)
        )
    return [_as_one(results) for results in by_analysis.values()]


def _as_one(results: Sequence[Result]) -> Result:
    """Return results of one study as one: what stands in several is taken from the last."""
    first = results[0]
    tables = {}
    for name, columns in first.schema.items():
        exact = [column for column, kind in columns.items() if kind not in (pl.Float64, pl.Float32)]
        keys = first.keys.get(name, exact)
        stacked = pl.concat([getattr(one, name) for one in results])
        tables[name] = stacked.unique(keys, keep="last", maintain_order=True)
    matrices = {key: one.matrices[key] for one in results for key in one.matrices}
    tokens = {text: names for one in results for text, names in one.tokens.items()}
    return type(first).of(tables, first.provenance, matrices, tokens)


def _opening(result: Result) -> str:
    return result.title if result.title.endswith("?") else f"{result.title}:"


def _apart(result: Result) -> list[Section]:
    """Return the sections of a result, charts put in, whose places and headings name the result."""
    name, charts = result.analysis.replace(" ", "-"), {} if result.views else result.charts()
    return [
        replace(
            section,
            anchor=f"{name}-{section.anchor}",
            of=_opening(result),
            charts=[charts[one] if isinstance(one, str) else one for one in section.charts],
        )
        for section in result.sections()
    ]
