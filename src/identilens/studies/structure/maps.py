"""Mean weights and W of every head as maps: small ones of all heads, and large ones for the viewer."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from torch import Tensor

from identilens.charts.kit import AnyChart
from identilens.charts.thumbnails import thumbnails
from identilens.charts.viewer import TokenMap
from identilens.measures.structure.weights import structure_weights
from identilens.runs.matrices import Matrices
from identilens.runs.tables import Row

SHOWN = {"raw": "raw attention", "effective": "effective attention (sizes)"}


def gallery(
    table: pl.DataFrame, matrices: Matrices, kind: str, name: str, penalty: float
) -> AnyChart:
    """Return W of every head of a kind as a small map, ``raw`` or ``effective``."""
    prefix = "" if name == "raw" else "effective_"
    heads = table.filter(kind=kind).select("layer", "head", "threshold", f"{prefix}pattern")
    pictures = [
        structure_weights(matrices[f"{kind}.layer{layer}.{name}"][head], level, penalty=penalty)
        for layer, head, level, _ in heads.iter_rows()
    ]
    return thumbnails(
        heads.drop("threshold").rename({f"{prefix}pattern": "best pattern"}),
        "head",
        "layer",
        pictures,
        x_title="Head",
        y_title="Layer",
        also=["best pattern"],
        title=f"W of every {kind} head, {SHOWN[name]}",
        description="Small maps by layer and head; rows are queries, columns keys; shade is the root of the weight.",
    )


def token_maps(
    table: pl.DataFrame, matrices: Matrices, penalty: float, special: Sequence[int]
) -> list[TokenMap]:
    """Return mean weights and W of every head for the viewer, over representatives and over all texts."""
    shown = []
    for row in table.iter_rows(named=True):
        names = [
            f"{place} (special)" if place in special else str(place)
            for place in range(row["length"])
        ]
        note = (
            "Best pattern: raw {pattern} ({score:.2f}), effective {effective_pattern} "
            "({effective_score:.2f}). dim R = {dim_r} of {length}."
        ).format(**row)
        over = {
            "": f"{row['representatives']} representatives",
            "all_": f"all {row['texts']} texts",
        }
        for name, words in SHOWN.items():
            for prefix, texts in over.items():
                key = f"{row['kind']}.layer{row['layer']}.{prefix}{name}"
                mean, level = matrices[key][row["head"]], row["threshold"]
                layers = {
                    f"W at l = {level:.4g}": structure_weights(mean, level, penalty=penalty),
                    "mean weights": mean,
                }
                choices = {one: row[one] for one in ("kind", "layer", "head")}
                choices |= {"weights": words, "mean over": texts}
                shown.append(TokenMap(choices, layers, names, names, note))
    return shown


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
