"""From summaries to the rows of the audit's tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import isnan
from typing import Any

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.measures.attention.layer import LayerMeasures
from identilens.models.layout import Site
from identilens.runs.tables import Row
from identilens.studies.audit.result import Audit
from identilens.studies.drawn import mean_and_error

_COUNTS = ("rank", "nullity", "simplex_nullity")
_MEASURES = (
    *_COUNTS,
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


def scalars(measures: LayerMeasures) -> Float[Tensor, "measure head"]:
    """Return the measures that become columns, in a tensor of their own: what they were computed from is not kept."""
    return torch.stack([getattr(measures, name).double() for name in _MEASURES])


@dataclass(frozen=True)
class LayerRows:
    """Rows of the audit table: the heads of a layer, one text after the other.

    Attributes:
        counts: Columns that all rows share.
        measures: The `scalars`.
        certain: What is certain of the sampled rows of each head.
        keys: The tokens at each text's keys.
    """

    texts: Sequence[int]
    site: Site
    counts: Mapping[str, int]
    measures: Float[Tensor, "measure head"]
    certain: Sequence[Sequence[Row]]
    keys: Sequence[Sequence[str]]

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of the table; what is undefined becomes a missing value."""
        site, texts, certain = self.site, self.texts, self.certain
        columns: dict[str, list[Any]] = dict(zip(_MEASURES, self.measures.tolist(), strict=True))
        columns |= {name: [int(value) for value in columns[name]] for name in (*_COUNTS, "sink")}
        columns["pearson"] = [None if isnan(value) else value for value in columns["pearson"]]
        tokens = [names for names in self.keys for _ in range(site.heads)]
        columns["sink_token"] = [
            names[place] for names, place in zip(tokens, columns["sink"], strict=True)
        ]
        masses = [[row["certain_mass"] for row in rows] for rows in certain]
        # Where nothing is free, the rows that were not drawn are known, too.
        sizes = [
            self.counts["n_query"] if free else len(some)
            for some, free in zip(masses, columns["simplex_nullity"], strict=True)
        ]
        means, errors = zip(*map(mean_and_error, masses, sizes), strict=True)
        columns |= {
            "certain_mass": [*means],
            "certain_mass_bfloat16": [
                mean_and_error([row["certain_mass_bfloat16"] for row in rows], len(rows))[0]
                for rows in certain
            ],
            "certain_mass_error": [*errors],
            "certain_rows": [*map(len, masses)],
        }
        columns["text"] = [text for text in texts for _ in range(site.heads)]
        columns["head"] = [*range(site.heads)] * len(texts)
        same = {"layer": site.layer, "kind": site.kind, **self.counts}
        return columns | {name: [value] * len(masses) for name, value in same.items()}


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
        rows, means, schema = [], [torch.zeros(2, 0)], Audit.schema["token_types"]
        for site, (counts, received) in self._sums.items():
            present = counts.nonzero().flatten().tolist()
            rows += [
                {
                    "kind": site.kind,
                    "layer": site.layer,
                    "head": head,
                    "query_type": self.names[query],
                    "key_type": key,
                    "queries": int(counts[query]),
                }
                for head, query, key in product(range(site.heads), present, self.names)
            ]
            means.append((received.cpu()[:, :, present] / counts[present, None]).flatten(1))
        raw, effective = torch.cat(means, 1).numpy()
        return pl.DataFrame(rows, schema=pl.Schema(schema)).with_columns(
            raw=pl.Series(raw), effective=pl.Series(effective)
        )


def merge_token_types(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the token type table from rows of several parts: means weighted by query tokens."""
    keys = ["kind", "layer", "head", "query_type", "key_type"]
    weighted = [(pl.col(name) * pl.col("queries")).sum() for name in ("raw", "effective")]
    sums = parts.group_by(keys, maintain_order=True).agg(pl.col("queries").sum(), *weighted)
    means = sums.with_columns(pl.col("raw", "effective") / pl.col("queries"))
    return means.select(list(parts.columns)).sort("kind", "layer", "head", maintain_order=True)
