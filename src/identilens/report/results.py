"""Which report and which figures belong to the result that a folder holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from identilens.errors import OutputFolderError
from identilens.report.dyck_figures import save_dyck_figures
from identilens.report.dyck_report import write_dyck_report
from identilens.report.dyck_tables import construction_view, pruning_view
from identilens.report.encoder_tables import sweep_view, training_view
from identilens.report.table_report import save_table_figures, write_table_report
from identilens.report.tokens_figures import save_tokens_figures
from identilens.report.tokens_report import write_tokens_report
from identilens.results.dyck import DyckRuns
from identilens.results.run_folder import read_record
from identilens.results.tokens import TokenIdentifiability


@dataclass(frozen=True)
class _Views:
    """How one kind of result is loaded and shown."""

    load: Callable[[Path], Any]
    report: Callable[[Any, Path], Path]
    figures: Callable[[Any, Path, Sequence[str]], list[Path]]


_VIEWS = {
    "tokens": _Views(TokenIdentifiability.load, write_tokens_report, save_tokens_figures),
    "dyck": _Views(DyckRuns.load, write_dyck_report, save_dyck_figures),
    "dyck-construction": _Views(construction_view, write_table_report, save_table_figures),
    "dyck-pruning": _Views(pruning_view, write_table_report, save_table_figures),
    "training": _Views(training_view, write_table_report, save_table_figures),
    "encoder sweep": _Views(sweep_view, write_table_report, save_table_figures),
}


def write_report(folder: Path, path: Path | None = None) -> Path:
    """Write the HTML report of the result that a folder holds and return its path.

    Args:
        folder: A result folder.
        path: The file to write; report.html in the folder when not given.

    Raises:
        OutputFolderError: If the folder holds no finished result, or the file cannot be written.
    """
    views, target = _views(folder), path or folder / "report.html"
    result = views.load(folder)
    return views.report(result, target)


def save_figures(folder: Path, out: Path | None = None, formats: Sequence[str] = ("png", "svg", "pdf")) -> list[Path]:
    """Draw the figures of the result that a folder holds and return their paths.

    Args:
        folder: A result folder.
        out: Where to write; figures/ in the folder when not given.
        formats: Any of png, svg, pdf.

    Raises:
        InputError: For a format that is not supported.
        OutputFolderError: If the folder holds no finished result, or files cannot be written.
    """
    views = _views(folder)
    return views.figures(views.load(folder), out or folder / "figures", formats)


def _views(folder: Path) -> _Views:
    record = read_record(folder)
    if record is None or record["analysis"] not in _VIEWS:
        raise OutputFolderError(
            f"{folder} holds no result of identilens. Pass the folder given to --out ({', '.join(_VIEWS)})."
        )
    return _VIEWS[record["analysis"]]
