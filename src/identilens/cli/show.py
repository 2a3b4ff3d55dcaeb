"""Commands on finished runs and their files: export, compare, verify and check."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import ExistingPath

from identilens.cli.later import called
from identilens.errors import CheckFailedError
from identilens.runs.settings import Switch
from identilens.runs.terminal import say

load_result = called("identilens.studies.reports:load_result")
write_report = called("identilens.studies.reports:write_report")
compare = called("identilens.studies.compare.comparison:compare")
write_text = called("identilens.runs.files:write_text")
verify = called("identilens.cli.verify:verify")
print_table = called("identilens.runs.tables:print_table")
read_certificate = called("identilens.studies.certify.certificates:CertificateFile.read")

Form = Literal["html", "figures", "json", "csv", "citation"]
_Out = Annotated[Path | None, Parameter(alias="-o")]


def export(
    folder: ExistingPath,
    /,
    *,
    to: Form = "html",
    out: _Out = None,
) -> None:
    """Write a finished run in another form.

    Args:
        folder: Folder of the run: what was given to its --out.
        to: The report as one HTML file (html), its charts as png, svg and pdf (figures), every table and named
            number (json), a file for each table (csv), or a sentence and a BibTeX entry that identify it (citation).
        out: File or folder to write; report.html, figures/, result.json or tables/ in the run's folder by default. A
            citation is printed.
    """
    if to == "html":
        say(f"report: {write_report(folder, out)}")
        return
    result, written = load_result(folder), []
    if to in ("figures", "citation"):
        print(result.cite())
    if to == "figures":
        written = result.save_figures(out or folder / "figures")
    elif to == "csv":
        written = result.to_csv(out or folder / "tables")
    elif to == "json":
        written = [out or folder / "result.json"]
        write_text(written[0], result.to_json())
    for path in written:
        say(path)


def compare_runs(
    *runs: ExistingPath,
    json: Switch = False,
) -> None:
    """Compare finished runs of one study: of other texts, or of any number of models or checkpoints.

    Args:
        runs: Folders of two or more runs.
        json: Print all rows as JSON: of each run and measure the mean, the difference from the first run, its standard
            error over texts (error), and how many layers and heads both runs have (places).
    """
    table = compare(*map(load_result, runs))
    if json:
        print(table.write_json())
    else:
        print_table("Means over texts, and differences from the first run", table)


def verify_folder(folder: ExistingPath, /, *, trust_remote_code: Switch = False) -> None:
    """Run a finished run again, and say whether its tables are equal, or which columns differ by how much.

    Nothing is written. The exit code is 1 if a column differs by more than rounding, a billionth of its largest number.

    Args:
        folder: Folder of the run, with its run.toml, which says where model and texts are.
        trust_remote_code: Run the Python code that the checkpoint contains. The folder itself cannot switch this on.
    """
    table = verify(folder, trust_remote_code=trust_remote_code)
    if table.is_empty():
        say(
            f"{folder}: identical, every column of every table, up to a billionth of its largest number. The report is "
            f"not compared; identilens export {folder} writes it again from the tables."
        )
        return
    print_table(
        f"Columns of {folder} that differ: in how many rows, and the largest difference",
        table,
    )
    raise CheckFailedError(
        f"{folder} differs from what its settings (run.toml) give now. Its tables may have been changed after the run; "
        "another model or other texts (a warning says so), another version of identilens or of its libraries "
        "(provenance.json), or another machine may be the cause, too."
    )


def check(file: ExistingPath, /, *files: ExistingPath) -> None:
    """Compute the ends in certificates again, from their numbers alone, and say whether they hold.

    The exit code is 1 if one does not. What a file says of itself, its model and its row, is printed and not checked.

    Args:
        file: A certificate, from the folder certificates of a run with --claim "A > B" --certificates.
        files: Further certificates.
    """
    read = {path: read_certificate(path) for path in (file, *files)}
    for name, proof in read.items():
        say(f"{name}: {proof.sentences()}")
    failed = [
        proof
        for proof in read.values()
        if not proof.certificate.holds or proof.certificate.met is None
    ]
    if failed:
        raise CheckFailedError(
            f"{len(failed)} of {len(read)} certificates do not hold: their numbers do not prove the stated ends, or "
            "the rows that should reach them are no alternatives. Do not trust them; run the command that wrote them "
            "again."
        )
    say(f"{len(read)} of {len(read)} certificates hold.")
