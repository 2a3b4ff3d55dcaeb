"""From summaries to the rows of the audit's tables."""

from collections.abc import Sequence

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.measures.attention.summary import AttentionSummary
from identilens.models.layout import Site
from identilens.results.audit import TOKEN_TYPE_COLUMNS


def table_rows(text: int, site: Site, counts: Sequence[int], summary: AttentionSummary) -> list[tuple]:
    """Return one row of the audit table for each head; an undefined correlation becomes a missing value.

    Args:
        text: Number of the text.
        site: The layer.
        counts: n_query, n_key, d_k, d_v.
        summary: Its measures.
    """
    measures = zip(
        summary.rank.tolist(),
        summary.nullity.tolist(),
        summary.simplex_nullity.tolist(),
        summary.null_share.tolist(),
        (None if value != value else value for value in summary.pearson.tolist()),
        summary.reconstruction_error.tolist(),
        strict=True,
    )
    return [(text, site.layer, head, site.kind, *counts, *values) for head, values in enumerate(measures)]


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
        frames = []
        for site, (counts, received) in self._sums.items():
            for query, count in enumerate(counts.tolist()):
                if not count:
                    continue
                raw, effective = received[:, :, query] / count
                heads, types = raw.shape
                frames.append(
                    pl.DataFrame(
                        {
                            "kind": [site.kind] * heads * types,
                            "layer": [site.layer] * heads * types,
                            "head": torch.arange(heads).repeat_interleave(types).numpy(),
                            "query_type": [self.names[query]] * heads * types,
                            "key_type": list(self.names) * heads,
                            "queries": [int(count)] * heads * types,
                            "raw": raw.flatten().numpy(),
                            "effective": effective.flatten().numpy(),
                        },
                        schema=TOKEN_TYPE_COLUMNS,
                    )
                )
        return pl.concat(frames)
