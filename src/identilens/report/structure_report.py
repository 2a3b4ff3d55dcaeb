"""A structure analysis as one self-contained HTML file."""

from math import isfinite
from pathlib import Path
from typing import Any

import polars as pl

from identilens.report.heatmaps import encoded
from identilens.report.labels import visible_text
from identilens.report.page import Page, Section, write_page
from identilens.results.structure import Structure

MATRIX_BUDGET = 12_000_000
"""Characters of a page that may be spent on the mean weights of heads."""

_OUTSIDE = ("outside", "outside_half")
PARTS = ("raw", "effective", "all_raw", "all_effective")
_SCRIPTS = (
    "maps.js",
    "mixing/lines.js",
    "structure/maps.js",
    "structure/subspace.js",
    "structure/studies.js",
)


def write_structure_report(result: Structure, path: str | Path, *, budget: int = MATRIX_BUDGET) -> Path:
    """Write the report of a structure analysis as one HTML file without outside requests, and return its path.

    Args:
        result: The result.
        path: The file to write; missing folders are made.
        budget: Characters to spend on mean weights. Layers that do not fit are left out of the maps, and the page says
            so; all other figures have every head.

    Raises:
        OutputFolderError: If the file cannot be written.
    """
    shown = _within(result, budget)
    heads = result.table
    page = Page(
        title="Structure of attention",
        subject=f"{result.provenance['model'].get('name')} on {heads['texts'][0]} texts of {heads['length'][0]} tokens",
        finding=result.summary().splitlines(),
        numbers=_numbers(result),
        record=result.provenance,
        sections=_sections(result, len(shown)),
        data={
            "length": int(heads["length"][0]),
            "threshold": result.threshold,
            "penalty": float(result.provenance["settings"]["penalty"]),
            "special": result.provenance["settings"].get("special_positions", []),
            "maps": shown,
            "heads": _columns(heads),
            "growth": _columns(result.growth),
            "spectrum": _columns(result.spectrum),
            "positions": _columns(result.visibility_by_position()),
            "patterns": _columns(result.patterns),
            "texts": _columns(_texts_by_head(result)),
            "pairs": _columns(_pairs_by_head(result)),
            "stability": _columns(_stability_by_clusters(result)),
            "clusters": _columns(result.clusters),
        },
        blobs={f"structure-{index}": _blob(result, one) for index, one in enumerate(shown)},
        scripts=_SCRIPTS,
    )
    return write_page(page, path)


def _within(result: Structure, budget: int) -> list[dict[str, Any]]:
    """Return the heads whose mean weights fit into a page, layer by layer from the first."""
    rows, n = [], int(result.table["length"][0])
    cost = len(PARTS) * n * n * 2 * 4 // 3 + 4
    for (kind, layer), heads in result.table.group_by("kind", "layer", maintain_order=True):
        if cost * len(heads) > budget:
            break
        budget -= cost * len(heads)
        rows += [
            {
                "id": f"structure-{len(rows) + place}",
                "kind": kind,
                "layer": layer,
                "head": head,
                "n_query": n,
                "n_key": n,
            }
            for place, head in enumerate(heads["head"])
        ]
    return rows


def _blob(result: Structure, one: dict[str, Any]) -> str:
    parts = [result.mean_weights(one["layer"], one["head"], one["kind"], name).numpy() for name in PARTS]
    return encoded(parts)


def _numbers(result: Structure) -> list[tuple[str, str]]:
    heads, n = result.table, int(result.table["length"][0])
    filled = heads.filter(pl.col("dim_r") == n)
    patterned = (~heads["pattern"].is_in(["mixed", "empty"])).sum()
    numbers = [
        (f"{len(filled)} of {len(heads)}", f"heads whose R is the whole space of {n} dimensions"),
        (f"{heads['dim_95'].mean():.1f}", "directions hold 95 % of R's spectrum (mean over heads)"),
        (f"{patterned} of {len(heads)}", f"heads show a simple pattern at l = {result.threshold:.4g}"),
    ]
    within = dict(result.correlations().select("norm", "within_spearman").iter_rows())
    if within.get("structure") is not None:
        numbers.append((f"{within['structure']:.2f}", "rank correlation of ‖·‖_S with the change of the final state"))
    return numbers


def _sections(result: Structure, shown: int) -> list[Section]:
    heads = result.table
    context = {
        "shown": shown,
        "heads": len(heads),
        "representatives": int(heads["representatives"][0]),
        "texts": int(heads["texts"][0]),
        "length": int(heads["length"][0]),
    }
    correlations = [
        {name: _shown(value) for name, value in row.items()} for row in result.correlations().iter_rows(named=True)
    ]
    kinds = [
        {name: _shown(value) for name, value in row.items()}
        for row in result.by_perturbation().iter_rows(named=True)
    ] if len(result.perturbations) else []  # fmt: skip
    rows = [
        {
            **{name: _shown(value) for name, value in row.items()},
            "tokens": " ".join(visible_text(token) for token in row["tokens"].split(" ")),
        }
        for row in result.representatives.iter_rows(named=True)
    ]
    return [
        Section("maps", "W of every head", "structure/maps.html", context),
        Section("patterns", "Patterns", "structure/patterns.html", context | {"rows": _head_rows(result)}),
        Section("subspace", "The subspace R", "structure/subspace.html", context),
        Section("classes", "Equivalent weights", "structure/classes.html", context | {"pairs": len(result.pairs)}),
        Section("stability", "Representatives", "structure/stability.html", context | {"rows": rows}),
        Section(
            "norms", "Norms and the model's output", "structure/norms.html",
            {"rows": correlations, "kinds": kinds},
        ),
        Section("reading", "How to read this report", "structure/reading.html"),
    ]  # fmt: skip


def _head_rows(result: Structure) -> list[dict[str, str]]:
    columns = ("kind", "layer", "head", "dim_r", "dim_half", "dim_95", "pattern", "score", "place", "effective_pattern",
               "effective_score", "raw_to_effective", "empty_rows", "effective_empty_rows")  # fmt: skip
    return [
        {name: _shown(value) for name, value in row.items()}
        for row in result.table.select(columns).iter_rows(named=True)
    ]


def _texts_by_head(result: Structure) -> pl.DataFrame:
    return (
        result.texts.group_by("kind", "layer", "head", maintain_order=True)
        .agg(
            pl.col("rank", "ignored", "negative").mean(),
            # Rounding in float64 is shown as the zero that it is.
            *(pl.when(pl.col(name) < 1e-9).then(0.0).otherwise(pl.col(name)).mean().alias(name) for name in _OUTSIDE),
            pl.col("least").min(),
        )
        .sort("kind", "layer", "head")
    )


def _pairs_by_head(result: Structure) -> pl.DataFrame:
    return (
        result.pairs.filter(pl.col("freedom") > 0)
        .group_by("kind", "layer", "head", maintain_order=True)
        .agg(pl.col("overlap", "chance", "change_second").mean(), pl.col("disagree").mean(), pl.len().alias("pairs"))
        .sort("kind", "layer", "head")
    )


def _stability_by_clusters(result: Structure) -> pl.DataFrame:
    return (
        result.stability.group_by("kind", "clusters")
        .agg(
            pl.col("to_all").mean(), pl.col("to_next", "mean_to_all", "random_to_all").mean(),
            pl.col("to_all").quantile(0.1).alias("low"), pl.col("to_all").quantile(0.9).alias("high"),
        )
        .sort("kind", "clusters")
    )  # fmt: skip


def _columns(frame: pl.DataFrame) -> dict[str, list[Any]]:
    return {name: [_number(value) for value in frame[name]] for name in frame.columns}


def _number(value: Any) -> Any:
    """Return a number in four digits, as a page shows it at most; null where it is undefined."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if isfinite(value) else None
    return value


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 5e-4 else f"{value:.3f}"
    return str(value)
