"""A token identifiability analysis as one self-contained HTML file."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from identilens.report.page import Page, Section, write_page
from identilens.report.tokens_series import Chart, charts, probe_name
from identilens.results.stored import percent
from identilens.results.tokens import TokenIdentifiability

_TITLES = {
    "same-layer": "each layer's own probe",
    "across-layers": "trained on one layer, tested on all",
    "layer-to-layer": "from each layer to the one below",
    "neighbours": "neighbouring tokens",
    "data-share": "share of the training data",
}
# Rows of the table that are shown without being asked for.
_LONG_TABLE = 40
_SECTIONS = {
    "rates": "Layer by layer",
    "across": "Trained on one layer, tested on all",
    "neighbours": "Neighbouring tokens",
    "shares": "How much data the probe needs",
    "train": "Training against test sentences",
}


def write_tokens_report(result: TokenIdentifiability, path: str | Path) -> Path:
    """Write the report of a token identifiability analysis as one HTML file and return its path.

    Args:
        result: The result.
        path: The file to write; missing folders are made.

    Raises:
        OutputFolderError: If the file cannot be written.
    """
    found = charts(result)
    name = str(result.provenance["model"].get("name"))
    texts = result.provenance["texts"]["count"]
    page = Page(
        title="Token identifiability",
        subject=f"{name} on {texts} {'text' if texts == 1 else 'texts'}: {_TITLES[result.experiment]}",
        finding=result.summary().splitlines(),
        numbers=_numbers(result),
        record=_record(result.provenance),
        sections=[
            *(
                Section(group, title, "tokens/charts.html", {"group": group, "charts": own})
                for group, title in _SECTIONS.items()
                if (own := [chart for chart in found if chart.group == group])
            ),
            Section("table", "All means", "tokens/table.html", _table(result)),
            Section("reading", "How to read this report", "tokens/reading.html"),
        ],
        data={"charts": [_rounded(chart) for chart in found]},
        scripts=("tokens/charts.js",),
    )
    return write_page(page, path)


def _numbers(result: TokenIdentifiability) -> list[tuple[str, str]]:
    """Return the headline numbers."""
    table = result.table
    folds = table.group_by("fold").agg(tokens=table["tokens"].max(), sentences=table["sentences"].max())
    means = result.same_layer().filter(pl.col("share") == pl.col("share").max())
    best = means.filter(pl.col("layer_tested") == pl.col("layer_tested").max()).sort("rate")[-1].row(0, named=True)
    where = f"at layer {best['layer_tested']}" + (f", offset {best['offset']:+d}," if best["offset"] else "")
    return [
        (percent(best["rate"]), f"recovered {where} by the best probe ({probe_name(best)})"),
        (percent(table["chance"].mean()), "by guessing a position of the sentence (chance)"),
        (f"{len(folds)}", "folds of 70 / 15 / 15 % of the sentences"),
        (f"{table['tokens'].max():,}", f"test tokens a fold, in {table['sentences'].max():,} sentences"),
    ]


def _record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return provenance with the facts of a second checkpoint in a line of their own."""
    settings = dict(record["settings"])
    if settings.get("compared"):
        facts = settings["compared"]
        settings["compared"] = f"{facts.get('name')} (weights sha256 {str(facts.get('sha256'))[:16]})"
    return {**record, "settings": settings}


def _table(result: TokenIdentifiability) -> dict[str, Any]:
    """Return the means with numbers as people read them; columns that never differ are left out."""
    means = result.means()
    optional = {
        "checkpoint": "Checkpoint",
        "layer_trained": "Trained on",
        "layer_tested": "Tested on",
        "layer_target": "Recovers layer",
        "offset": "Offset",
        "share": "Training share",
    }
    shown = {name: label for name, label in optional.items() if means[name].n_unique() > 1}
    if means["layer_trained"].equals(means["layer_tested"], check_names=False):
        shown.pop("layer_trained", None)
        shown.pop("layer_tested", None)
        shown = {"layer_tested": "Layer", **shown}
    rows = []
    for row in means.iter_rows(named=True):
        error = "" if row["rate_error"] is None else f"{100 * row['rate_error']:.1f}"
        cells = [probe_name(row), *(_plain(row[name]) for name in shown)]
        cells += [percent(row["rate"]), error, percent(row["token_rate"]), percent(row["train_rate"])]
        cells += [percent(row["chance"]), _loss(row["validation_loss"]), _rates(row), _plain(row["epochs"])]
        rows.append([*cells, "" if row["converged"] is None else percent(row["converged"]), str(row["folds"])])
    labels = ["Recovered", "±", "Any position", "On training", "Chance", "Validation loss", "Learning rate"]
    columns = ["Probe", *shown.values(), *labels, "Epochs", "Stopped early", "Folds"]
    # What no row has (a learning rate without trained probes) takes no room.
    kept = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    return {
        "columns": [columns[place] for place in kept],
        "rows": [[row[place] for place in kept] for row in rows],
        "open": len(rows) <= _LONG_TABLE,
    }


def _rounded(chart: Chart) -> dict[str, Any]:
    """Return a chart as JSON types, numbers with five significant digits."""

    def short(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.5g}")
        if isinstance(value, list):
            return [short(one) for one in value]
        return {key: short(one) for key, one in value.items()} if isinstance(value, dict) else value

    return short(asdict(chart))


def _loss(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.4g}"


def _plain(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _rates(row: Mapping[str, Any]) -> str:
    low, high = row["lowest_learning_rate"], row["highest_learning_rate"]
    if low is None:
        return ""
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
