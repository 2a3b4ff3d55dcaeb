"""Mean weights and W of every head as maps for the viewer."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from torch import Tensor

from identilens.charts.viewer import TokenMap
from identilens.measures.structure.weights import structure_weights
from identilens.runs.matrices import Matrices
from identilens.runs.tables import Row

SHOWN = {"raw": "raw attention", "effective": "effective attention (sizes)"}


def token_maps(table: pl.DataFrame, matrices: Matrices, special: Sequence[int]) -> list[TokenMap]:
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
                    f"W at l = {level:.4g}": structure_weights(mean, level),
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
