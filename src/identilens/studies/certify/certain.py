"""What is certain of rows of all heads of a layer: their certain mass, and the interval of attention on the sink."""

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import torch
from torch import Tensor

from identilens.errors import UnsupportedModelError
from identilens.linalg import ProjectedValues
from identilens.measures.attention.checks import checked_weights
from identilens.measures.attention.determined import certain_ends, greatest_weights
from identilens.measures.attention.row_solver import allowed_change
from identilens.models.heads import CapturedLayer
from identilens.runs.tables import Row
from identilens.studies.settings import ROUNDING

CLOSE = 0.01
"""A lower bound this close to the exact certain mass is taken as what is left of it up to rounding."""


def certain_rows(
    layer: CapturedLayer, projected: ProjectedValues, queries: Sequence[int], sinks: Sequence[int]
) -> list[Row]:
    """Return what is certain of the rows of a layer that contains these queries only, head by head.

    ``projected`` are the values of its heads, ``sinks`` the position of each head's sink. Nothing is of heads whose
    weights are known in half precision only (`Head.attention`).

    Raises:
        NumericalError: If a program's answer cannot be certified.
    """
    rows: list[Tensor] = []
    proven = []
    visible, T = None, projected
    for number, head in enumerate(layer.heads):
        try:
            weights, T, visible = head.distributions(projected)
        except UnsupportedModelError:
            continue
        rows.append(checked_weights(weights, T, visible))
        proven.append(number)
    if not proven:
        return []
    weights, T = torch.stack(rows), replace(T, values=T.compact[proven], output=None)
    sink = torch.tensor(sinks, device=weights.device)[proven]
    lower, slopes = certain_ends(weights, T, visible)
    masses = lower.sum(-1).clamp_max(1.0)
    # What proves the exact ends bounds what is left of them where the output is rounded.
    allowed = allowed_change(weights, T, ROUNDING["bfloat16"])
    rounded = (lower - allowed[..., None] * slopes).clamp_min(0.0).sum(-1)
    loose = masses - rounded > CLOSE
    if (heads := loose.any(1)).any():
        some = replace(T, values=T.values[heads])
        ends = certain_ends(weights[heads], some, visible, ROUNDING["bfloat16"])[0].sum(-1)
        rounded[heads] = ends.where(loose[heads], rounded[heads])
    sink_weight, sink_lo = (
        one.take_along_dim(sink[:, None, None], 2)[..., 0] for one in (weights, lower)
    )
    columns = {
        "certain_mass": masses,
        "certain_mass_bfloat16": torch.minimum(rounded, masses),
        "sink_weight": sink_weight,
        "sink_lo": sink_lo,
        "sink_hi": greatest_weights(weights, T, sink, visible),
    }
    listed = {name: column.tolist() for name, column in columns.items()}
    table = pl.DataFrame({"head": proven, "query": [queries] * len(proven), **listed})
    return table.explode("query", *listed).to_dicts()
