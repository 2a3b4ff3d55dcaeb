"""What is certain of rows of all heads of a layer: their certain mass, and the interval of attention on the sink."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from identilens.errors import UnsupportedModelError
from identilens.linalg import ProjectedValues
from identilens.measures.attention.checks import checked_weights
from identilens.measures.attention.determined import certain_mass
from identilens.measures.attention.row_solver import RowSolver, allowed_change, filled
from identilens.models.heads import CapturedLayer, Head
from identilens.runs.tables import Row
from identilens.studies.outcomes import ROUNDING

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
    measured = []
    for query, row, space in zip(queries, rows, T.simplex_spaces(len(rows), visible), strict=True):
        solver = RowSolver(row, space)
        ends = solver.lower()
        lower, mass = filled(torch.zeros_like(row), space, ends), min(float(ends.sum()), 1.0)
        # What proves the exact ends bounds what is left of them where the output is rounded.
        allowed = float(allowed_change(row[None], T, ROUNDING["bfloat16"]))
        rounded = float((ends - allowed * solver.slopes).clamp_min(0.0).sum())
        measured.append(
            {
                "query": query,
                "certain_mass": mass,
                "certain_mass_bfloat16": min(rounded, mass),
                "sink_weight": float(row[sink]),
                "sink_lo": float(lower[sink]),
                "sink_hi": solver.greatest(sink) if space.visible[sink] else 0.0,
            }
        )
    loose = [
        at
        for at, one in enumerate(measured)
        if one["certain_mass"] - one["certain_mass_bfloat16"] > CLOSE
    ]
    if loose:
        seen = None if visible is None else visible[loose]
        masses = certain_mass(rows[loose], T, visible=seen, tolerance=ROUNDING["bfloat16"])
        for at, rounded in zip(loose, masses.tolist(), strict=True):
            measured[at]["certain_mass_bfloat16"] = min(rounded, measured[at]["certain_mass"])
    return measured
