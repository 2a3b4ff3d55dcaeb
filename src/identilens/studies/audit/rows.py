"""From summaries to the rows of the audit's tables."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.measures.attention.layer import LayerMeasures
from identilens.models.layout import Site
from identilens.runs.tables import HEAD
from identilens.studies.drawn import ALIKE

_MEASURES = (
    "rank",
    "nullity",
    "simplex_nullity",
    "null_share",
    "simplex_null_share",
    "pearson",
    "reconstruction_error",
    "sink",
    "sink_mass",
    "sink_norm_share",
    "sink_value_norm",
    "first_mass",
    "learned_sink",
    "output_share",
)


_CERTAIN = ("certain_mass", "certain_mass_bfloat16", "certain_mass_error", "certain_rows")


def scalars(measures: LayerMeasures) -> Float[Tensor, "measure head"]:
    """Return the measures that become columns, in a tensor of their own: what they were computed from is not kept."""
    return torch.stack([getattr(measures, name).double() for name in _MEASURES])


def layer_frame(
    texts: Sequence[int],
    site: Site,
    counts: Mapping[str, int],
    measures: Float[Tensor, "measure head"],
    keys: Sequence[Sequence[str]],
) -> pl.DataFrame:
    """Return rows of the audit table: the heads of a layer, one text after the other.

    Args:
        texts: Numbers of the texts.
        site: The layer.
        counts: Columns that all rows share.
        measures: The `scalars`.
        keys: The tokens at each text's keys.
    """
    columns = dict(zip(_MEASURES, measures.tolist(), strict=True))
    tokens = [names for names in keys for _ in range(site.heads)]
    sinks = zip(tokens, map(int, columns["sink"]), strict=True)
    return pl.DataFrame(
        {
            "layer": site.layer,
            "kind": site.kind,
            **counts,
            **columns,
            "text": [text for text in texts for _ in range(site.heads)],
            "head": [*range(site.heads)] * len(texts),
            "sink_token": [names[place] for names, place in sinks],
        }
    )


def with_certain_mass(table: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the table with the mean certain mass of the rows that were drawn of each map, and its standard error.

    Rows are drawn without repetition: the error is that of a finite population, 0 when every row was taken. Drawn rows
    that are all alike do not tell it; but where nothing is free, the rows that were not drawn are known, too.
    """
    mass, drawn, population = map(pl.col, ("certain_mass", "certain_rows", "n_query"))
    means = rows.group_by(list(HEAD)).agg(
        pl.col("certain_mass", "certain_mass_bfloat16").mean(),
        certain_mass_error=mass.std() * (1 / pl.len()).sqrt(),
        apart=mass.max() - mass.min(),
        certain_rows=pl.len().cast(pl.Int64),
    )
    error = pl.col("certain_mass_error") * (1 - drawn / population).sqrt()
    known = mass.is_not_null() & ((drawn == population) | (pl.col("simplex_nullity") == 0))
    return (
        table.drop(_CERTAIN)
        .join(means, on=list(HEAD), how="left", maintain_order="left")
        .with_columns(
            drawn.fill_null(0),
            certain_mass_error=pl.when(known).then(0.0).when(pl.col("apart") > ALIKE).then(error),
        )
        .select(table.columns)
    )


def received_frame(
    site: Site,
    names: Sequence[str],
    counts: Float[Tensor, " type"],
    received: Float[Tensor, "two head type type"],
) -> pl.DataFrame:
    """Return rows of the token type table of some texts: sums over the query tokens of each type.

    Args:
        site: The layer.
        names: Names of the types.
        counts: Query tokens of each type.
        received: What they give to each type, in raw and in effective attention.
    """
    heads, queries, keys = np.indices(received.shape[1:]).reshape(3, -1)
    raw, effective = received.cpu().flatten(1).numpy()
    return pl.DataFrame(
        {
            "kind": site.kind,
            "layer": site.layer,
            "head": heads,
            "query_type": [names[query] for query in queries],
            "key_type": [names[key] for key in keys],
            "queries": counts.long().cpu().numpy()[queries],
            "raw": raw,
            "effective": effective,
        }
    )


def added(parts: pl.DataFrame) -> pl.DataFrame:
    """Return rows of the token type table of several texts as one."""
    keys = ["kind", "layer", "head", "query_type", "key_type"]
    sums = pl.col("queries", "raw", "effective").sum()
    return parts.group_by(keys, maintain_order=True).agg(sums)


def means_by_type(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the token type table: means over all query tokens of a type."""
    sums = added(parts).filter(pl.col("queries") > 0)
    means = sums.with_columns(pl.col("raw", "effective") / pl.col("queries"))
    return means.sort("kind", "layer", "head", maintain_order=True)
