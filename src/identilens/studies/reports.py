"""Results, reports and figures of the run that a folder contains, whichever study it is of."""

from pathlib import Path

from identilens.errors import OutputFolderError
from identilens.runs.files import Manifest, recording
from identilens.runs.reading import read_record
from identilens.runs.result import Result
from identilens.studies.registry import study_named


def load_result(folder: str | Path) -> Result:
    """Return the result that a folder contains.

    Raises:
        OutputFolderError: If the folder contains no finished run.
        InputError: If it is of no study.

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
    path = Path(folder)
    record = read_record(path)
    if record is None:
        raise OutputFolderError(
            f"{path} contains no result of identilens. Pass the folder given to --out."
        )
    return study_named(record["analysis"]).result_type.load(path)


def write_report(folder: str | Path, path: str | Path | None = None) -> Path:
    """Write the HTML report of the run that a folder contains, and return its path.

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
    result, run = load_result(folder), Path(folder)
    with recording(Manifest(run)):
        return result.to_html(path or run / "report.html")
