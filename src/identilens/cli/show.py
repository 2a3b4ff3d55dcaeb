"""``identilens report``, ``compare`` and ``figures``: the report and the charts of finished runs."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from identilens.runs.settings import LIST, Switch
from identilens.runs.terminal import printable, say
from identilens.studies.comparison import compare
from identilens.studies.reports import load_result, write_report

_Out = Annotated[Path | None, Parameter(alias="-o")]


def report(folder: str, /, *, out: _Out = None) -> None:
    """Write the report of a finished run as one self-contained HTML file.

    Args:
        folder: Folder of the run: what was given to its --out.
        out: File to write; report.html in the folder by default.
    """
    say(f"report: {write_report(folder, out)}")


def compare_runs(
    run_a: str,
    run_b: str,
    /,
    *more: str,
    out: _Out = None,
    json: Switch = False,
) -> None:
    """Compare finished runs of one study: of other texts, or of any number of models or checkpoints.

    Args:
        run_a: Folder of the first run.
        run_b: Folder of the second run.
        more: Folders of further runs.
        out: HTML file to write, with charts; .html is added to a name without an ending. Default: no file.
        json: Print the table as JSON: of each run and measure the mean, the difference from the first run, its standard
            error over texts (error), the standard deviation of the differences over layers and heads (spread), and how
            many of these both runs have (places).
    """
    results = [load_result(run) for run in (run_a, run_b, *more)]
    comparison = compare(*results)
    if json:
        print(comparison.table.write_json())
    else:
        comparison.show()
    if out is not None:
        written = comparison.to_html(out if out.suffix else f"{out}.html")
        print(f"report: {printable(str(written))}", file=sys.stderr)


def figures(
    folder: str,
    /,
    *,
    out: _Out = None,
    formats: Annotated[str, LIST] = "png,svg,pdf",
) -> None:
    """Write the charts of a finished run as files for print.

    Args:
        folder: Folder of the run: what was given to its --out.
        out: Folder to write to; figures/ in the run's folder by default.
        formats: Any of png, svg and pdf, separated by commas.
    """
    chosen = tuple(name.strip() for name in formats.split(","))
    for path in load_result(folder).save_figures(out or Path(folder) / "figures", chosen):
        say(path)
