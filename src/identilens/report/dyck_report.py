"""Trained Dyck transformers as one self-contained HTML file, with a gallery of attention by seed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from identilens.report.dyck_figures import pattern
from identilens.report.heatmaps import encoded
from identilens.report.page import Page, Section, write_page
from identilens.results.dyck import DyckRuns
from identilens.results.stored import percent

_CHARACTERS = 12_000_000
"""Most characters that the attention patterns of a report may take; seeds beyond that are left out, and said to be."""


def write_dyck_report(result: DyckRuns, path: str | Path) -> Path:
    """Write the report of trained Dyck transformers as one HTML file and return its path.

    Args:
        result: The result.
        path: The file to write; missing folders are made.

    Raises:
        OutputFolderError: If the file cannot be written.
    """
    gallery, blobs = _gallery(result)
    settings, seeds = result.settings, result.table["seed"].n_unique()
    sections = [
        Section(
            "gallery", "Attention by seed", "dyck/gallery.html", {"settings": settings, "left_out": gallery["out"]}
        ),
        Section("accuracy", "Accuracy", "dyck/accuracy.html", _accuracy(result)),
        Section("variation", "Variation between seeds", "dyck/variation.html", _variation(result)),
        Section("use", "What attention is used for", "dyck/use.html", _use(result)),
    ]
    points = _violations(result)
    if points:
        sections.append(Section("balance", "Balance", "dyck/balance.html", {}))
    sections.append(Section("reading", "How to read this report", "dyck/reading.html"))
    curves = result.curves.filter(pl.col("loss").is_not_nan())
    page = Page(
        title="Dyck transformers",
        subject=f"{len(settings)} {'setting' if len(settings) == 1 else 'settings'}, {seeds} "
        f"{'seed' if seeds == 1 else 'seeds'} each",
        finding=result.summary().splitlines(),
        numbers=_numbers(result),
        record=_record(result.provenance),
        sections=sections,
        data={
            "gallery": gallery,
            "heads": _heads(result),
            "violations": points,
            "curves": [
                {"setting": str(setting), "seed": seed, "loss": [_short(one) for one in rows["loss"].to_list()]}
                for (setting, seed), rows in curves.group_by(["setting", "seed"], maintain_order=True)
            ],
        },
        blobs=blobs,
        scripts=("maps.js", "dyck/gallery.js", "dyck/charts.js"),
    )
    return write_page(page, path)


def _gallery(result: DyckRuns) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the gallery shows, and its patterns by element id, each seed whole or left out."""
    blobs: dict[str, str] = {}
    settings, room, out = [], _CHARACTERS, 0
    for number, (setting, own) in enumerate(result.patterns.group_by(["setting"], maintain_order=True)):
        heads = own.select("layer", "head").unique(maintain_order=True).rows()
        tokens = own["tokens"][0].to_list()
        seeds = []
        for seed in own["seed"].unique(maintain_order=True).to_list():
            maps = np.stack([pattern(own, seed, layer, head) for layer, head in heads])
            text = encoded(list(maps))
            if len(text) > room:
                out += 1
                continue
            room -= len(text)
            blobs[f"patterns-{number}-{seed}"] = text
            seeds.append(seed)
        settings.append({"name": setting[0], "tokens": tokens, "heads": heads, "seeds": seeds})
    return {"settings": settings, "out": out}, blobs


def _numbers(result: DyckRuns) -> list[tuple[str, str]]:
    means = result.means()
    table = result.table
    return [
        (percent(means["argmax"].min()), "of the closing brackets right in distribution, least mean of a setting"),
        (percent(means["long_argmax"].max()), "right on long prefixes, best mean of a setting"),
        (f"{len(table)}", "models trained"),
        (f"{len(result.heads.filter(pl.col('looks') & ~pl.col('used')))} of {len(result.heads)}",
         "heads look like a stack and are not used"),
    ]  # fmt: skip


def _accuracy(result: DyckRuns) -> dict[str, Any]:
    rows = []
    for row in result.means().iter_rows(named=True):
        cells = [row["setting"], str(row["seeds"])]
        for name in ("argmax", "threshold", "long_argmax", "long_threshold"):
            error = row[f"{name}_error"]
            cells.append(percent(row[name]) + ("" if error is None else f" ± {100 * error:.2f}"))
        rows.append([*cells, "" if row["loss"] is None else f"{row['loss']:.4f}"])
    lengths = result.provenance["settings"].get("lengths") or []
    return {
        "columns": ["Setting", "Seeds", "Argmax", "Threshold", "Argmax, long", "Threshold, long", "Loss"],
        "rows": rows,
        "lengths": " to ".join(map(str, lengths)),
    }


def _variation(result: DyckRuns) -> dict[str, Any]:
    rows = []
    for row in result.variation.iter_rows(named=True):
        error = "" if row["error"] is None or np.isnan(row["error"]) else f" ± {row['error']:.2f}"
        rows.append([
            row["setting"], str(row["layer"]), str(row["head"]), "in" if row["with_start"] else "out",
            str(row["size"]), f"{row['value']:.2f}{error}", f"{row['even_on_simplex']:.2f}",
            f"{row['softmax_of_normals']:.2f}",
        ])  # fmt: skip
    columns = ["Setting", "Layer", "Head", "Start token", "Tokens", "Variation", "Random rows", "Random logits"]
    return {"columns": columns, "rows": rows}


def _use(result: DyckRuns) -> dict[str, Any]:
    rows = [
        [
            row["setting"], str(row["layer"]), str(row["heads"]), f"{row['stack_weight']:.2f}",
            f"{100 * row['largest_fall']:.1f}", str(row["misleading"]), str(row["stack_and_used"]),
            str(row["used_unlike_a_stack"]), str(row["neither"]),
        ]
        for row in result.misleading().iter_rows(named=True)
    ]  # fmt: skip
    columns = [
        "Setting", "Layer", "Heads", "Weight on the stack's top", "Largest fall (points)", "Looks, not used",
        "Looks and used", "Used, looks otherwise", "Neither",
    ]  # fmt: skip
    return {"columns": columns, "rows": rows}


def _heads(result: DyckRuns) -> list[dict[str, Any]]:
    names = (
        "setting",
        "seed",
        "layer",
        "head",
        "stack_weight",
        "largest_fall",
        "accuracy",
        "removed",
        "even",
        "random",
    )
    return [{name: _short(row[name]) for name in names} for row in result.heads.iter_rows(named=True)]


def _violations(result: DyckRuns) -> list[dict[str, Any]]:
    names = ("setting", "seed", "violation", "long_argmax", "long_threshold", "loss")
    rows = result.table.filter(pl.col("violation").is_not_null())
    return [{name: _short(row[name]) for name in names} for row in rows.iter_rows(named=True)]


def _record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return provenance with each setting on a line of its own."""
    settings = dict(record["settings"])
    for number, text in enumerate(settings.pop("settings", []), 1):
        settings[f"setting {number}"] = text
    return {**record, "settings": settings}


def _short(value: Any) -> Any:
    return (None if np.isnan(value) else float(f"{value:.5g}")) if isinstance(value, float) else value
