"""What testing explanations has shown, in words and numbers."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from identilens.runs.result import Finding
from identilens.runs.tables import counted, percent
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
        f"order to the best ({counted(rows, 'row')} of {counted(tested['texts'], 'text')})."
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
    worst = named.sort("stable", nulls_last=True).row(0, named=True)
    over = float(controls.select((pl.col("change") / pl.col("floor").clip(1e-300)).max()).item())
    lines += [
        f"Over other weights with the same output, the order of {best['explanation']} agrees with itself by "
        f"{_range(best, 'stable')}; least stable is {worst['explanation']} ({_range(worst, 'stable')})."
        + _without_order(named),
        f"Control: put into the model, these weights change it by at most {over:.1f} noise floors; {failed} of "
        f"{len(controls)} are beyond the limit.",
    ]
    numbers |= {"stable": best["stable"], "control": over, "failed_controls": failed}
    if best["stable"] is not None:
        agreement = "agreement of its order with itself over other weights with the same output"
        headline.append((f"{best['stable']:.2f}", agreement))
    headline.append((f"{over:.1f}", "noise floors: the largest change by such weights (control)"))
    return Finding("\n".join(lines), numbers, headline)


def _without_order(named: pl.DataFrame) -> str:
    """Return which explanations have no order in some rows, so that their agreement rests on fewer."""
    some = named.filter(pl.col("no_order") > 0).sort("no_order", descending=True)
    shares = [f"{row['explanation']} in {percent(row['no_order'])} of the rows" for row in some.iter_rows(named=True)]
    return f" Without any order, and left out: {', '.join(shares)}." if shares else ""


def _range(row: Mapping[str, Any], axis: str) -> str:
    if row[axis] is None:
        return "an unknown amount (it has no order in any row)"
    return in_words(row[axis], row[f"{axis}_low"], row[f"{axis}_high"])
