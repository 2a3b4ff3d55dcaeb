"""What testing explanations has shown, in words and numbers."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from identilens.runs.result import Finding
from identilens.studies.faithfulness.means import in_words


def finding(plane: pl.DataFrame, tested: Mapping[str, int], controls: pl.DataFrame, failed: int) -> Finding:
    """Return the most faithful explanation, the least stable, and how the control ended."""
    rows = tested["rows"]
    if not rows:
        return Finding("No row was tested: every row of these texts sees a single key.", {"rows": 0})
    named = plane.filter(pl.col("explanation") != "random").drop_nulls("faithful").sort("faithful", descending=True)
    if not len(named):
        return Finding(
            f"Of {rows} rows no order of keys is better than another: effects lie within the noise floor.",
            {"rows": rows},
        )
    best = named.row(0, named=True)
    lines = [
        f"Most faithful: {best['explanation']}, whose order lies {_range(best, 'faithful')} of the way from the worst "
        f"order to the best ({rows} rows of {tested['texts']} texts)."
    ]
    if tested["left_out"]:
        lines.append(f"{tested['left_out']} of {tested['tests']} tests are left out: effects within the noise floor.")
    numbers: dict[str, float | int | None] = {
        "rows": rows,
        "faithful": best["faithful"],
        "left_out": tested["left_out"],
    }
    headline = [(f"{best['faithful']:.2f}", f"of the way from the worst to the best order: {best['explanation']}")]
    if not len(controls):
        lines.append("No row has other weights with the same output: every explanation is determined.")
        return Finding("\n".join(lines), numbers, headline)
    worst = named.sort("stable").row(0, named=True)
    over = float(controls.select((pl.col("change") / pl.col("floor").clip(1e-300)).max()).item())
    lines += [
        f"Over other weights with the same output, the order of {best['explanation']} agrees with itself by "
        f"{_range(best, 'stable')}; least stable is {worst['explanation']} ({_range(worst, 'stable')}).",
        f"Control: put into the model, these weights change it by at most {over:.1f} noise floors; {failed} of "
        f"{len(controls)} are beyond the limit.",
    ]
    numbers |= {"stable": best["stable"], "control": over, "failed_controls": failed}
    headline += [
        (f"{best['stable']:.2f}", "agreement of its order with itself over other weights with the same output"),
        (f"{over:.1f}", "noise floors: the largest change by such weights (control)"),
    ]
    return Finding("\n".join(lines), numbers, headline)


def _range(row: Mapping[str, Any], axis: str) -> str:
    return in_words(row[axis], row[f"{axis}_low"], row[f"{axis}_high"])
