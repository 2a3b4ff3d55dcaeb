"""What is certain of rows of all heads of a layer: their certain mass, and the interval of attention on the sink."""

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import torch

from identilens.errors import UnsupportedModelError
from identilens.linalg import ProjectedValues
from identilens.measures.attention.checks import checked_weights
from identilens.measures.attention.determined import certain_mass, map_solvers
from identilens.measures.attention.row_solver import allowed_change
from identilens.models.heads import CapturedLayer, Head
from identilens.runs.tables import Row
from identilens.studies.settings import ROUNDING

CLOSE = 0.01
"""A lower bound this close to the exact certain mass is taken as what is left of it up to rounding."""


def certain_rows(
    layer: CapturedLayer, projected: ProjectedValues, queries: Sequence[int], sinks: Sequence[int]
) -> list[list[Row]]:
    """Return, head by head, what is certain of the rows of a layer that contains these queries only.

    ``projected`` are the values of its heads, ``sinks`` the position of each head's sink. Nothing is of heads whose
    weights are known in half precision only (`Head.attention`).

    Raises:
        NumericalError: If a program's answer cannot be certified.
    """
    heads = zip(layer.heads, projected.compact, sinks, strict=True)
    return [
        _rows(head, replace(projected, values=compact, output=None), queries, sink)
        for head, compact, sink in heads
    ]


def _rows(head: Head, T: ProjectedValues, queries: Sequence[int], sink: int) -> list[Row]:
    try:
        weights, T, visible = head.distributions(T)
    except UnsupportedModelError:
        return []
    rows = checked_weights(weights, T, visible)
    lower, slopes = torch.zeros_like(rows), torch.zeros_like(rows)
    greatest, unit = rows.new_zeros(len(rows)), torch.zeros_like(rows[0])
    unit[sink] = 1.0
    for solver, places in map_solvers(T, len(rows), visible):
        own = rows[places]
        ends = solver.lower(own, own.new_zeros(len(own)))
        lower[places], slopes[places] = map(solver.filled, ends)
        greatest[places] = solver.greatest(own, unit).to(greatest.device)
    masses = lower.sum(1).clamp_max(1.0)
    # What proves the exact ends bounds what is left of them where the output is rounded.
    allowed = allowed_change(rows, T, ROUNDING["bfloat16"])
    rounded = (lower - allowed[:, None] * slopes).clamp_min(0.0).sum(1)
    loose = masses - rounded > CLOSE
    if loose.any():
        seen = None if visible is None else visible[loose]
        rounded[loose] = certain_mass(rows[loose], T, visible=seen, tolerance=ROUNDING["bfloat16"])
    columns = {
        "query": torch.tensor(queries),
        "certain_mass": masses,
        "certain_mass_bfloat16": torch.minimum(rounded, masses),
        "sink_weight": rows[:, sink],
        "sink_lo": lower[:, sink],
        "sink_hi": greatest,
    }
    return pl.DataFrame({name: column.numpy() for name, column in columns.items()}).to_dicts()
