"""A run again, from the request in its folder, and what is different then."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from identilens.cli.options import INPUTS, load_inputs
from identilens.errors import InputError
from identilens.runs.provenance import differences
from identilens.runs.request import read_request
from identilens.runs.result import Result
from identilens.runs.settings import Settings, hints_of
from identilens.runs.study import bound_study, run_study
from identilens.studies.registry import STUDIES, study_named
from identilens.studies.reports import load_result

ROUNDING = 1e-9
"""Differences up to this share of a column's largest number are rounding."""


def verify(
    folder: str | Path,
    *,
    lens: Any = None,
    texts: Any = None,
    chats: Any = None,
    trust_remote_code: bool = False,
) -> pl.DataFrame:
    """Repeat a run and return how the tables differ from those in its folder: no rows if they are equal up to rounding.

    A warning says if the model or the texts are not those of the first run, by their digests, or if these are missing.

    Each row is a column that differs by more than rounding, a billionth of its largest number: in how many of its
    table's rows, and of numbers the largest difference. Matrices are not compared.

    Args:
        folder: Folder of the run.
        lens: The model, if it was given in Python, or another model.
        texts: The texts, if they were given in Python, or other texts.
        chats: The conversations, if they were given in Python, or other ones.
        trust_remote_code: Run the Python code that the checkpoint contains. The folder itself cannot switch this on.

    Raises:
        InputError: If the folder contains no request, inputs that were given in Python are not given again, or the
            run needs ``trust_remote_code``.
        IdentilensError: Any error of the study or of `load_result`.

    Examples:
        >>> import identilens as idl
        >>> import tempfile
        >>> from pathlib import Path
        >>> folder = Path(tempfile.mkdtemp()) / "run"
        >>> audit = idl.audit(idl.load("bundled"), "Nobody came.", layers=3, certain_rows=0, examples=0, out=folder)
        >>> idl.verify(folder).is_empty()
        True
    """
    inputs = {"lens": lens, "texts": texts, "chats": chats}
    passed = {name: value for name, value in inputs.items() if value is not None}
    first = load_result(folder)
    again = _run_again(Path(folder), first.analysis, passed, trust_remote_code)
    there, here = first.provenance, again.provenance
    if (
        there["model"].get("digest") != here["model"].get("digest")
        or there["texts"] != here["texts"]
    ):
        changes = differences(there, here)
        warnings.warn(f"not known to be the run of {folder}: {changes}", stacklevel=2)
    rows = []
    for name, columns in first.schema.items():
        before, after = getattr(first, name), getattr(again, name)
        if len(before) != len(after):
            differ = abs(len(before) - len(after))
            rows.append({"table": name, "column": "(rows)", "differ": differ})
            continue
        for column, kind in columns.items():
            old, new = before[column], after[column]
            row, differ = {"table": name, "column": column}, old.ne_missing(new)
            if kind.is_numeric():
                apart, size = (new - old).abs(), old.filter(old.is_finite()).abs().max() or 0.0
                differ &= (apart > ROUNDING * size).fill_null(True)
                row["largest"] = apart.max()
            rows.append({**row, "differ": int(differ.sum())})
    return pl.DataFrame(rows, schema=DIFFERENCES).filter(pl.col("differ") > 0)


DIFFERENCES = {
    "table": pl.String,
    "column": pl.String,
    "differ": pl.Int64,
    "largest": pl.Float64,
}
"""Columns of what `verify` finds."""


def _run_again(folder: Path, name: str, passed: Mapping[str, Any], trusted: bool) -> Result:
    """Return the result of a run's options, with the inputs that are given in place of its own."""
    options, lost = read_request(folder, name)
    lost = [role for role in lost if role not in passed]
    if lost:
        raise InputError(
            f"the {' and '.join(lost)} of {folder} were given in Python and are not stored. Pass them: "
            f"identilens.verify(folder, {lost[0]}=...)."
        )
    if options.get("trust_remote_code") and not trusted and "lens" not in passed:
        raise InputError(
            f"the run of {folder} ran code of its checkpoint. Pass trust_remote_code=True if you trust that code."
        )
    options["trust_remote_code"] = trusted
    study, takes = study_named(name), STUDIES[name].takes

    def stored(kind: type[Settings]) -> Any:
        return kind.of(None, {name: options[name] for name in hints_of(kind) if name in options})

    missing = {role: stored(INPUTS[role][1]) for role in takes if role not in passed}
    inputs = {**passed, **load_inputs(missing)}
    settings = stored(study.settings_type)
    bound = bound_study(study, [inputs[role] for role in takes], settings, {})
    # Some runs write files beside their tables.
    with TemporaryDirectory() as scratch:
        return run_study(bound, out=Path(scratch) / "again")
