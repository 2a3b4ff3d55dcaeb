"""From summaries to the rows of the audit's tables."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import isnan
from typing import Any

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.measures.attention.parked import ParkedAttention
from identilens.measures.attention.summary import AttentionSummary
from identilens.models.layout import Site
from identilens.studies.audit.certain import mean_and_error
from identilens.studies.audit.result import Audit

_MEASURES = (
    "rank", "nullity", "simplex_nullity", "null_share", "simplex_null_share", "pearson", "reconstruction_error",
)  # fmt: skip

Certain = Sequence[Sequence[dict[str, Any]]]
"""What is certain of the sampled rows of each head."""


def table_rows(
    text: int, site: Site, counts: Mapping[str, int], summary: AttentionSummary, parked: ParkedAttention,
    certain: Certain, keys: Sequence[str],
) -> list[dict[str, Any]]:  # fmt: skip
    """Return one row of the audit table for each head of a layer; what is undefined becomes a missing value.

    ``counts`` are columns, ``keys`` the tokens at the keys.
    """
    measures: dict[str, list[Any]] = {name: getattr(summary, name).tolist() for name in _MEASURES}
    measures["pearson"] = [None if isnan(value) else value for value in measures["pearson"]]
    measures |= {field.name: getattr(parked, field.name).tolist() for field in fields(parked)}
    measures["sink_token"] = [keys[place] for place in measures["sink"]]
    layer = {"text": text, "layer": site.layer, "kind": site.kind, **counts}
    by_head = zip(certain, *measures.values(), strict=True)
    return [
        layer | {"head": head} | dict(zip(measures, row, strict=True)) | _certain_columns(rows, counts["n_query"])
        for head, (rows, *row) in enumerate(by_head)
    ]


def certain_table_rows(text: int, site: Site, certain: Certain) -> list[dict[str, Any]]:
    """Return the rows of the table of sampled rows."""
    place = {"text": text, "layer": site.layer, "kind": site.kind}
    return [place | {"head": head} | row for head, rows in enumerate(certain) for row in rows]


def _certain_columns(rows: Sequence[dict[str, Any]], queries: int) -> dict[str, Any]:
    masses = [row["certain_mass"] for row in rows]
    mean, error = mean_and_error(masses, queries)
    return {"certain_mass": mean, "certain_mass_error": error, "certain_rows": len(rows)}


class ReceivedSums:
    """Attention from token type to token type, summed over the texts of a part."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._sums: dict[Site, tuple[Tensor, Tensor]] = {}

    def add(self, site: Site, queries: Float[Tensor, " type"], summary: AttentionSummary) -> None:
        """Add one text's share in one layer: how many queries of each type, and what they gave to each type."""
        counts, received = self._sums.get(site, (0, 0))
        both = torch.stack([summary.raw_received, summary.effective_received]).cpu()
        self._sums[site] = (counts + queries, received + both)  # pyright: ignore[reportArgumentType] starts at 0

    def table(self) -> pl.DataFrame:
        """Return the means over query tokens, in the columns of the token type table."""
        blocks = [
            (site, query, int(count), received[:, :, query] / count)
            for site, (counts, received) in self._sums.items()
            for query, count in enumerate(counts.tolist())
            if count
        ]
        rows = pl.DataFrame({
            "kind": [site.kind for site, *_ in blocks], "layer": [site.layer for site, *_ in blocks],
            "head": [list(range(means.shape[1])) for *_, means in blocks],
            "query_type": [self.names[query] for _, query, *_ in blocks], "key_type": [list(self.names)] * len(blocks),
            "queries": [count for _, _, count, _ in blocks],
            "raw": [means[0].tolist() for *_, means in blocks],
            "effective": [means[1].tolist() for *_, means in blocks],
        })  # fmt: skip
        by_type = rows.explode("head", "raw", "effective").explode("key_type", "raw", "effective")
        return by_type.cast(pl.Schema(Audit.schema["token_types"]))  # pyright: ignore[reportArgumentType]


def merge_token_types(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the token type table from rows of several parts: means weighted by query tokens."""
    keys = ["kind", "layer", "head", "query_type", "key_type"]
    weighted = [(pl.col(name) * pl.col("queries")).sum() for name in ("raw", "effective")]
    sums = parts.group_by(keys, maintain_order=True).agg(pl.col("queries").sum(), *weighted)
    means = sums.with_columns(pl.col("raw", "effective") / pl.col("queries"))
    return means.select(list(parts.columns)).sort("kind", "layer", "head", maintain_order=True)
