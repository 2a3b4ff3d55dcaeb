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
from identilens.studies.audit.result import Audit
from identilens.studies.drawn import ALIKE
from identilens.studies.heads import shaped

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


class ReceivedSums:
    """Attention from token type to token type, summed over the texts of a part."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._sums: dict[Site, tuple[Tensor, Tensor]] = {}

    def add(
        self, sites: Sequence[Site], queries: Float[Tensor, " type"], measures: LayerMeasures
    ) -> None:
        """Add some texts' share in some layers: how many queries of each type, and what they gave to each type."""
        both = (
            torch.stack([measures.raw_received, measures.effective_received])
            .unflatten(1, (len(sites), -1, sites[0].heads))
            .sum(2)
        )
        for site, one in zip(sites, both.unbind(1), strict=True):
            counts, received = self._sums.get(site, (0, 0))
            self._sums[site] = (counts + queries, received + one)  # pyright: ignore[reportArgumentType] starts at 0

    def table(self) -> pl.DataFrame:
        """Return the means over query tokens, in the columns of the token type table."""
        frames = []
        for site, (counts, received) in self._sums.items():
            means = (received.cpu() / counts.cpu()[:, None]).numpy()
            heads, queries, keys = np.indices(means.shape[1:]).reshape(3, -1)
            raw, effective = means.reshape(2, -1)
            frames.append(
                pl.DataFrame(
                    {
                        "kind": site.kind,
                        "layer": site.layer,
                        "head": heads,
                        "query_type": [self.names[query] for query in queries],
                        "key_type": [self.names[key] for key in keys],
                        "queries": counts.long().cpu().numpy()[queries],
                        "raw": raw,
                        "effective": effective,
                    }
                ).filter(pl.col("queries") > 0)
            )
        return shaped(Audit.schema["token_types"], frames)


def merge_token_types(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the token type table from rows of several parts: means weighted by query tokens."""
    keys = ["kind", "layer", "head", "query_type", "key_type"]
    weighted = [(pl.col(name) * pl.col("queries")).sum() for name in ("raw", "effective")]
    sums = parts.group_by(keys, maintain_order=True).agg(pl.col("queries").sum(), *weighted)
    means = sums.with_columns(pl.col("raw", "effective") / pl.col("queries"))
    return means.select(list(parts.columns)).sort("kind", "layer", "head", maintain_order=True)
