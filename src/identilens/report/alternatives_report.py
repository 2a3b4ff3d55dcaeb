"""Alternatives put back into the model, as a part of a report or a page of their own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from identilens.report.heatmaps import axis_tokens, encoded
from identilens.report.page import Page, Section, write_page
from identilens.report.part import Part
from identilens.results.alternatives import Alternatives

MATRIX_BUDGET = 12_000_000
"""Characters of a page that may be spent on matrices."""

TITLES = {
    "sampled": "drawn evenly from all alternatives",
    "far": "far alternative",
    "maximum_entropy": "maximum entropy",
    "realisable": "other queries and keys",
    "parameters": "other query and key parameters",
}


def write_alternatives_report(result: Alternatives, path: str | Path) -> Path:
    """Write the report of alternatives as one HTML file without outside requests, and return its path.

    Raises:
        OutputFolderError: If the file cannot be written.
    """
    part = alternatives_part(result)
    found = result.table.drop_nulls("mean_total_variation")
    far = found.filter(pl.col("alternative") == "far")
    page = Page(
        title="Alternatives to attention weights",
        subject=str(result.provenance["model"].get("name")),
        finding=result.summary().splitlines(),
        numbers=(
            (f"{len(found):,}", "alternatives, each put back into the model"),
            (_number(far["mean_total_variation"].mean(), ".2f"), "mean distance of the far ones (total variation)"),
            (_number(found["output_error"].max(), ".1e"), "largest relative change of a head's output"),
            (_number(found["hidden_change"].max(), ".1e"), "largest relative change of the final hidden state"),
        ),
        record=result.provenance,
        sections=part.sections,
        data=part.data,
        blobs=part.blobs,
        scripts=part.scripts,
    )
    return write_page(page, path)


def alternatives_part(result: Alternatives) -> Part:
    """Return the section that shows raw, effective and alternative attention side by side."""
    shown = list(_within(result))
    maps, blobs, tokens = [], {}, {}
    for index, row in enumerate(shown):
        prefix = map_prefix(row)
        names = [f"{prefix}.{part}" for part in ("raw", "effective", f"alternative_{row['alternative']}")]
        blobs[f"alternative-{index}"] = encoded([result.matrices[name].float().numpy() for name in names])
        maps.append({"id": f"alternative-{index}", **_facts(result, row)})
        sides = axis_tokens(result.tokens.get(row["text"], {}), row["kind"], row["n_query"], row["n_key"])
        tokens |= {
            f"{row['text']}.{row['kind']}.{side}": held for side, held in zip(("query", "key"), sides, strict=True)
        }
    rows = [{name: _cell(value) for name, value in row.items()} for row in result.table.iter_rows(named=True)]
    for row in rows:
        row["title"] = TITLES.get(row["alternative"], row["alternative"])
    context = {"shown": len(shown), "found": len(result.table.drop_nulls("mean_total_variation")), "rows": rows}
    section = Section("alternatives", "What else the attention could have been", "alternatives/viewer.html", context)
    data = {"alternatives": {"maps": maps, "tokens": tokens, "titles": TITLES}}
    return Part([section], data, blobs, ["maps.js", "alternatives/viewer.js"])


def _within(result: Alternatives) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table whose matrices fit into a page, from the first on."""
    left = MATRIX_BUDGET
    for row in result.table.drop_nulls("mean_total_variation").iter_rows(named=True):
        left -= 8 * row["n_query"] * row["n_key"] + 8
        if left < 0:
            return
        yield row


def _facts(result: Alternatives, row: dict[str, Any]) -> dict[str, Any]:
    keys = ("text", "layer", "head", "kind", "alternative")
    here = pl.all_horizontal(pl.col(name) == row[name] for name in keys)
    states = result.changes.filter(here & pl.col("state_layer").is_not_null())
    changes = {
        sequence: rows.sort("state_layer")["relative_change"].to_list()
        for (sequence,), rows in states.group_by("state", maintain_order=True)
    }
    return {**row, "changes": changes}


def map_prefix(row: dict[str, Any]) -> str:
    """Return what the keys of a row's matrices start with."""
    return f"text{row['text']}.layer{row['layer']}.head{row['head']}.{row['kind']}"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}"
    return str(value)


def _number(value: Any, form: str) -> str:
    return "none" if value is None else format(float(value), form)
