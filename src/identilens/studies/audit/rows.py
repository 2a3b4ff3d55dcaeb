"""From summaries to the rows of the audit's tables."""

from collections.abc import Sequence
from math import isnan
from typing import Any

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.measures.attention.summary import AttentionSummary
from identilens.models.layout import Site
from identilens.studies.audit.result import Audit

_MEASURES = ("rank", "nullity", "simplex_nullity", "null_share", "pearson", "reconstruction_error")


def table_rows(text: int, site: Site, counts: Sequence[int], summary: AttentionSummary) -> list[dict[str, Any]]:
    """Return one row of the audit table for each head; an undefined correlation becomes a missing value.

    Args:
        text: Number of the text.
        site: The layer.
        counts: n_query, n_key, d_k, d_v.
        summary: Its measures.
    """
    measures: dict[str, list[Any]] = {name: getattr(summary, name).tolist() for name in _MEASURES}
    measures["pearson"] = [None if isnan(value) else value for value in measures["pearson"]]
    place = {"text": text, "layer": site.layer, "kind": site.kind}
    sizes = dict(zip(("n_query", "n_key", "d_k", "d_v"), counts, strict=True))
    return [
        {**place, "head": head, **sizes, **{name: values[head] for name, values in measures.items()}}
        for head in range(site.heads)
    ]


class ReceivedSums:
    """Attention from token type to token type, summed over the texts of a part.

    Args:
        names: Names of the types.
    """

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
        return pl.concat(
            self._block(site, query, int(count), received[:, :, query] / count)
            for site, (counts, received) in self._sums.items()
            for query, count in enumerate(counts.tolist())
            if count
        )

    def _block(self, site: Site, query: int, count: int, means: Float[Tensor, "2 head type"]) -> pl.DataFrame:
        """Return the rows of the queries of one type in one layer."""
        raw, effective = means
        heads, types = raw.shape
        size = heads * types
        columns = {
            "kind": [site.kind] * size,
            "layer": [site.layer] * size,
            "head": torch.arange(heads).repeat_interleave(types).numpy(),
            "query_type": [self.names[query]] * size,
            "key_type": list(self.names) * heads,
            "queries": [count] * size,
            "raw": raw.flatten().numpy(),
            "effective": effective.flatten().numpy(),
        }
        return pl.DataFrame(columns, schema=pl.Schema(Audit.schema["token_types"]))


def merge_token_types(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the token type table from rows of several parts: means weighted by query tokens."""
    keys = ["kind", "layer", "head", "query_type", "key_type"]
    weighted = [(pl.col(name) * pl.col("queries")).sum() for name in ("raw", "effective")]
    sums = parts.group_by(keys, maintain_order=True).agg(pl.col("queries").sum(), *weighted)
    means = sums.with_columns(pl.col("raw", "effective") / pl.col("queries"))
    return means.select(list(parts.columns)).sort("kind", "layer", "head", maintain_order=True)
