"""Mean weights and W of every head as maps: small ones of all heads, large ones for the viewer, and what l leaves."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import torch
from torch import Tensor

from identilens.charts.kit import AnyChart, choose
from identilens.charts.thumbnails import thumbnails
from identilens.charts.viewer import TokenMap
from identilens.measures.structure.weights import structure_weights
from identilens.runs.matrices import Matrices
from identilens.runs.tables import Row

SHOWN = {"raw": "raw attention", "effective": "effective attention (sizes)"}
_STEPS = 60


def levels(table: pl.DataFrame) -> list[float]:
    """Return the thresholds whose W is shown: the run's own, none, and multiples of its own that weights can reach."""
    threshold = table["threshold"][0]
    return list(
        dict.fromkeys(
            [
                threshold,
                0.0,
                *(factor * threshold for factor in (0.5, 2, 4) if factor * threshold <= 1),
            ]
        )
    )


def gallery(
    table: pl.DataFrame, matrices: Matrices, kind: str, name: str, penalty: float
) -> AnyChart:
    """Return W of every head of a kind as a small map, ``raw`` or ``effective``, with a choice of thresholds."""
    rows, pictures, n = [], [], table["length"][0]
    names = {level: f"l = {level:.4g} ({level * n:.3g} times uniform)" for level in levels(table)}
    prefix = "" if name == "raw" else "effective_"
    for layer, head, pattern in (
        table.filter(kind=kind).select("layer", "head", f"{prefix}pattern").iter_rows()
    ):
        mean = matrices[f"{kind}.layer{layer}.{name}"][head]
        for level in names:
            rows.append(
                {"layer": layer, "head": head, "best pattern": pattern, "threshold": names[level]}
            )
            pictures.append(structure_weights(mean, level, penalty=penalty))
    drawn = thumbnails(
        pl.DataFrame(rows),
        "head",
        "layer",
        pictures,
        x_title="Head",
        y_title="Layer",
        also=["best pattern"],
        title=f"W of every {kind} head, {SHOWN[name]}",
        description="Small maps by layer and head; rows are queries, columns keys; shade is the root of the weight.",
    )
    return choose(drawn, "threshold", "Threshold", list(names.values()))


def token_maps(
    table: pl.DataFrame, matrices: Matrices, penalty: float, special: Sequence[int]
) -> list[TokenMap]:
    """Return mean weights and W of every head for the viewer, over representatives and over all texts."""
    threshold, token_maps = table["threshold"][0], []
    means = (
        ("", f"{table['representatives'][0]} representatives"),
        ("all_", f"all {table['texts'][0]} texts"),
    )
    for row in table.iter_rows(named=True):
        choices = {name: row[name] for name in ("kind", "layer", "head")}
        for name, words in SHOWN.items():
            for prefix, over in means:
                mean = matrices[f"{row['kind']}.layer{row['layer']}.{prefix}{name}"][row["head"]]
                shown = [threshold] if prefix or 2 * threshold > 1 else [threshold, 2 * threshold]
                layers = {
                    f"W at l = {level:.4g}": structure_weights(mean, level, penalty=penalty)
                    for level in shown
                }
                layers["mean weights"] = mean
                names = [
                    f"{place} (special)" if place in special else str(place)
                    for place in range(len(mean))
                ]
                where = {**choices, "weights": words, "mean over": over}
                raw, effective = (
                    _placed(
                        special, *(row[f"{prefix}{name}"] for name in ("pattern", "score", "place"))
                    )
                    for prefix in ("", "effective_")
                )
                token_maps.append(
                    TokenMap(
                        where,
                        layers,
                        names,
                        names,
                        (
                            f"At the run's own l = {row['threshold']:.4g}: raw {raw}; "
                            f"effective {effective}. dim R = {row['dim_r']} of "
                            f"{row['length']}."
                        ),
                    )
                )
    return token_maps


def kept(table: pl.DataFrame, matrices: Matrices) -> pl.DataFrame:
    """Return which share of entries a threshold keeps and which share of rows it empties, head by head.

    Columns: kind, layer, head, weights, threshold, kept, emptied. Means over representatives are cut.
    """
    sites = table.select("kind", "layer").unique(maintain_order=True)
    means = {
        (f"{kind}.layer{layer}", name): matrices[f"{kind}.layer{layer}.{name}"]
        for kind, layer in sites.iter_rows()
        for name in SHOWN
    }
    most = max(float(mean.max()) for mean in means.values())
    thresholds = most * (torch.arange(_STEPS + 1, dtype=torch.float64) / _STEPS) ** 2
    rows = []
    for (key, name), mean in means.items():
        stays = [mean >= level for level in thresholds.tolist()]
        columns = {
            "weights": name,
            "threshold": thresholds.expand(len(mean), -1),
            "kept": torch.stack([one.double().mean((-2, -1)) for one in stays], -1),
            "emptied": torch.stack([(~one.any(-1)).double().mean(-1) for one in stays], -1),
        }
        rows += head_rows(key, columns)
    return pl.DataFrame(rows).explode("threshold", "kept", "emptied")


def head_rows(key: str, columns: Mapping[str, Any]) -> list[Row]:
    """Return a row for each head of a layer: tensors and lists have an entry per head, anything else is one for all."""
    kind, layer = key.split(".layer")
    lists = {
        name: values.tolist() if isinstance(values, Tensor) else values
        for name, values in columns.items()
    }
    heads = next(len(values) for values in lists.values() if isinstance(values, list))
    return [
        {"kind": kind, "layer": int(layer), "head": head}
        | {
            name: values[head] if isinstance(values, list) else values
            for name, values in lists.items()
        }
        for head in range(heads)
    ]


def _placed(special: Sequence[int], pattern: str, score: float, place: int | None) -> str:
    if pattern == "empty":
        return "empty in most rows"
    if pattern == "mixed":
        return f"no simple pattern (best score {score:.2f})"
    where = ""
    if pattern == "vertical":
        where = f" at key {place}{', a special token' if place in special else ''}"
    elif pattern in ("offset", "block"):
        where = f" at {place}".replace("-", "−")
    return f"{pattern}{where}, score {score:.2f}"
