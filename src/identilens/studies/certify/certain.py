"""What is certain of rows of all heads of a layer: their certain mass, and the interval of attention on the sink."""

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from identilens.errors import UnsupportedModelError
from identilens.linalg import ProjectedValues
from identilens.measures.attention.checks import checked_weights
from identilens.measures.attention.determined import least_weights, shared_spaces
from identilens.measures.attention.row_programs import allowed_change, optima_of
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
    sink = one_hot(torch.tensor(sinks, device=weights.device)[proven], T.keys).to(weights)
    allowed = allowed_change(weights, T, ROUNDING["bfloat16"])
    names = "certain_mass", "certain_mass_bfloat16", "sink_weight", "sink_lo", "sink_hi"
    columns = allowed.new_zeros(len(names), *allowed.shape)
    for space, some, keys in shared_spaces(T, len(queries), visible):
        place = slice(None), some[..., None], keys
        on_sink = sink[:, None].expand_as(weights)[place].flatten(0, 1)
        inside, moved = weights[place].flatten(0, 1), allowed[:, some].flatten(0, 1)
        lower, slopes = least_weights(space, inside, 0 * moved)
        mass = lower.sum(-1).clamp_max(1.0)
        # What proves the exact ends bounds what is left of them where the output is rounded.
        rounded = (lower - moved[..., None] * slopes).clamp_min(0.0).sum(-1)
        loose = mass - rounded > CLOSE
        heads = loose.any(1).nonzero()[:, 0]
        if len(heads):
            ends, _ = least_weights(space.of(heads), inside[heads], moved[heads])
            rounded[heads] = ends.sum(-1).where(loose[heads], rounded[heads])
        most = -optima_of(space, inside, -on_sink[..., None, :], 0 * moved).bounds[..., 0]
        sums = (inside * on_sink).sum(-1), (lower * on_sink).sum(-1)
        found = torch.stack([mass, torch.minimum(rounded, mass), *sums, most])
        columns[:, :, some] = found.unflatten(1, (-1, len(some)))
    listed = dict(zip(names, columns.tolist(), strict=True))
    table = pl.DataFrame({"head": proven, "query": [queries] * len(proven), **listed})
    return table.explode("query", *listed).to_dicts()
