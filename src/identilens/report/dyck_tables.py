"""What the constructed and the pruned transformers show: findings, tables and charts."""

from pathlib import Path

import polars as pl

from identilens.report.table_report import Chart, TableView
from identilens.results.stored import load_run, percent

_NAMES = {"uniform": "uniform attention (Corollary 1)", "balanced": "balanced attention (Theorem 1)"}


def construction_view(folder: Path) -> TableView:
    """Return what the constructions in a folder show (Wen et al. 2023, Theorem 1 and Corollary 1).

    Raises:
        OutputFolderError: If the folder holds no finished run of this kind.
    """
    tables, record = load_run(folder, "dyck-construction")
    table = tables["table"]
    longest = table["length"].max()
    finding = []
    for (name, off), rows in table.group_by("construction", "off_balance", maintain_order=True):
        if off == 0:
            finding.append(
                f"{_sentence(_NAMES[str(name)])}: at every length to {longest:,} at least "
                f"{percent(rows['support'].min())} of the places have exactly the possible next brackets, and "
                f"{percent(rows['argmax'].min())} of the closing brackets are right; balance violation "
                f"{rows['violation'].max():.2g}."
            )
        else:
            last = rows.filter(pl.col("length") == longest).row(0, named=True)
            finding.append(
                f"Moved {off:g} logits off balance (violation {last['violation']:.2g}): {percent(last['argmax'])} of "
                f"the closing brackets right at length {longest:,}."
            )
    charts = [
        Chart(
            measure,
            title,
            "brackets",
            "share",
            {
                _line(str(name), float(str(off))): rows.select("length", measure).rows()
                for (name, off), rows in table.group_by("construction", "off_balance", maintain_order=True)
            },
            log_x=True,
        )
        for measure, title in (
            ("argmax", "Right closing brackets by length"),
            ("support", "Places with exactly the possible next brackets by length"),
        )
    ]
    settings = record["settings"]
    subject = (
        f"Dyck of {settings['types']} types and depth {settings['max_depth']}, {settings['count']} prefixes a length"
    )
    return TableView("Constructed Dyck transformers", subject, finding, table, charts, record)


def pruning_view(folder: Path) -> TableView:
    """Return what the prunings in a folder show (Wen et al. 2023, Theorem 3 and Corollary 3).

    Raises:
        OutputFolderError: If the folder holds no finished run of this kind.
    """
    tables, record = load_run(folder, "dyck-pruning")
    table = tables["table"]
    means = (
        table.group_by("width", "candidates")
        .agg(pl.col("error").mean(), pl.col("error").max().alias("most"), pl.len().alias("count"))
        .sort("width")
    )
    first, last = means.row(0, named=True), means.row(-1, named=True)
    shared = table.filter(pl.col("shared") & pl.col("pruning"))
    settings = record["settings"]
    finding = [
        f"With {last['candidates']} random products for each weight (width {last['width']}) the pruned transformer is "
        f"at most {last['most']:.2g} from its target on {settings['inputs']:,} random inputs, over {last['count']} "
        f"random transformers; with {first['candidates']} (width {first['width']}) {first['most']:.2g}.",
        f"In {len(shared)} of {len(table)} pairs the prunings for two targets agree on every weight of layer "
        f"{settings['shared_layer']}, while the targets lie at least {table['apart'].min():.2g} apart: the weights of "
        "one layer alone do not tell what a transformer computes.",
    ]
    lines = {
        "mean over random transformers": means.select("width", "error").rows(),
        "largest": means.select("width", "most").rows(),
    }
    chart = Chart("error_by_width", "Largest error of a token by width", "width of the random feed-forward block",
                  "error", lines, log_y=True)  # fmt: skip
    subject = (
        f"A target of {settings['layers']} {'layer' if settings['layers'] == 1 else 'layers'}, embedding size "
        f"{settings['size']}, feed-forward width {settings['width']}, inside random transformers four times as deep"
    )
    return TableView("Pruned random transformers", subject, finding, table, [chart], record)


def _line(name: str, off: float) -> str:
    return _NAMES[name] if off == 0 else f"{off:g} logits off balance"


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]
