"""Where a study of single heads goes: a folder of its own, or beneath the audit that it belongs to."""

import hashlib
from pathlib import Path

from identilens.cli.common import console
from identilens.errors import OutputFolderError
from identilens.models import Lens
from identilens.report import write_report
from identilens.results.run_folder import read_record


def study_folder(out: Path, analysis: str, lens: Lens, *options: object) -> Path:
    """Return the folder for a study: ``out`` itself, or one beneath it when it holds an audit.

    Args:
        out: What the user gave.
        analysis: Name of the study.
        lens: The model.
        options: What tells two studies of the same audit apart.

    Raises:
        OutputFolderError: If ``out`` holds an audit of another model.
    """
    held = read_record(out) if out.is_dir() else None
    if held is None or held["analysis"] != "audit":
        return out
    if held["model"]["sha256"] != lens.digest:
        raise OutputFolderError(
            f"{out} holds an audit of {held['model']['name']}, whose parameters are not those of {lens.name}. "
            "Choose another folder, or the model of the audit."
        )
    return out / f"{analysis}-{hashlib.sha256(repr(options).encode()).hexdigest()[:8]}"


def report_study(out: Path, folder: Path) -> None:
    """Write the report of a study, and anew that of the audit it was joined to, and say where they are."""
    console.print(f"report: {write_report(folder)}", soft_wrap=True)
    if folder != out:
        console.print(f"joined to the audit's report: {write_report(out)}", soft_wrap=True)
