"""The result of an audit: its table, what the token types receive, and the matrices that were kept."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from torch import Tensor

from identilens.results.matrices import StoredMatrices, write_all_matrices
from identilens.results.stored import load_run, print_table, save_run

COLUMNS: dict[str, Any] = {
    "text": pl.Int64,
    "layer": pl.Int64,
    "head": pl.Int64,
    "kind": pl.String,
    "n_query": pl.Int64,
    "n_key": pl.Int64,
    "d_k": pl.Int64,
    "d_v": pl.Int64,
    "rank": pl.Int64,
    "nullity": pl.Int64,
    "simplex_nullity": pl.Int64,
    "null_share": pl.Float64,
    "pearson": pl.Float64,
    "reconstruction_error": pl.Float64,
}
"""Columns of the audit table: one row for each text, layer, head and kind."""

TOKEN_TYPE_COLUMNS: dict[str, Any] = {
    "kind": pl.String,
    "layer": pl.Int64,
    "head": pl.Int64,
    "query_type": pl.String,
    "key_type": pl.String,
    "queries": pl.Int64,
    "raw": pl.Float64,
    "effective": pl.Float64,
}
"""Columns of the token type table: attention that a query token of one type puts on all keys of another, on average."""

_MEASURES = ("rank", "nullity", "null_share", "pearson", "reconstruction_error")


@dataclass(frozen=True)
class Finding:
    """What an audit found, in numbers and in a sentence or two.

    Attributes:
        maps: Attention maps audited (rows of the table).
        with_null_space: Share of maps in which some directions of the weights have no effect (nullity > 0).
        null_share: Mean share of the squared weights that the head output does not depend on.
        pearson: Mean correlation of raw and effective attention; None where it is defined nowhere.
        text: The plain-language finding.
    """

    maps: int
    with_null_space: float
    null_share: float
    pearson: float | None
    text: str


@dataclass(frozen=True)
class Audit:
    """Every number of an audit.

    Attributes:
        table: One row for each text, layer, head and kind; columns as in `COLUMNS`.
        token_types: Mean attention from token type to token type; columns as in `TOKEN_TYPE_COLUMNS`.
        provenance: What made it.
        matrices: ``text{t}.layer{l}.head{h}.{kind}.{raw|effective|null}`` for the texts that were kept.
        tokens: Tokens of those texts by sequence ("encoder", "decoder").
    """

    table: pl.DataFrame
    token_types: pl.DataFrame
    provenance: dict[str, Any]
    matrices: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    tokens: Mapping[int, dict[str, list[str]]] = field(default_factory=dict, repr=False)

    def by_layer(self) -> pl.DataFrame:
        """Return the mean of each measure over texts and heads, by kind and layer."""
        return self._mean_by("kind", "layer")

    def by_head(self) -> pl.DataFrame:
        """Return the mean of each measure over texts, by kind, layer and head."""
        return self._mean_by("kind", "layer", "head")

    def by_length(self) -> pl.DataFrame:
        """Return the mean of each measure over heads, by kind and number of keys."""
        return self._mean_by("kind", "n_key")

    def received(self) -> pl.DataFrame:
        """Return the attention that each token type receives, averaged over all query tokens (Brunner Fig. 1b, 1c)."""
        weight = pl.col("queries")
        keys = ["kind", "layer", "head", "key_type"]
        return (
            self.token_types.group_by(keys)
            .agg(
                ((pl.col("raw") * weight).sum() / weight.sum()).alias("raw"),
                ((pl.col("effective") * weight).sum() / weight.sum()).alias("effective"),
            )
            .sort(keys)
        )

    def summary(self) -> Finding:
        """Return the finding: how much of the attention has no effect on the output, in numbers and plain words."""
        table = self.table
        maps = len(table)
        with_null_space = float((table["nullity"] > 0).mean() or 0)  # pyright: ignore[reportArgumentType] a float
        null_share = float(table["null_share"].mean() or 0)  # pyright: ignore[reportArgumentType] a float
        correlations = table["pearson"].drop_nulls()
        pearson = float(correlations.mean()) if len(correlations) else None  # pyright: ignore[reportArgumentType]
        return Finding(maps, with_null_space, null_share, pearson, "\n".join(self._sentences()))

    def show(self) -> None:
        """Print the finding and the means by layer."""
        Console().print(self.summary().text)
        print_table("Means by layer", self.by_layer())

    def save(self, folder: str | Path) -> None:
        """Write the result as a folder that `load` reads.

        Raises:
            OutputFolderError: If the folder holds another run, or cannot be written.
        """
        tables = {"table": self.table, "token_types": self.token_types}
        save_run(folder, self.provenance, tables, lambda path: write_all_matrices(path, self.matrices, self.tokens))

    @classmethod
    def load(cls, folder: str | Path) -> "Audit":
        """Return the result that a folder holds; matrices are read when they are looked at.

        Raises:
            OutputFolderError: If the folder holds no finished audit.
        """
        tables, record = load_run(folder, "audit", ("table", "token_types"))
        store = StoredMatrices(Path(folder) / "matrices")
        return cls(tables["table"], tables["token_types"], record, store, store.tokens)

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one self-contained HTML file and return its path."""
        from identilens.report import write_audit_report

        return write_audit_report(self, Path(path))

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.summary().text)}</p>{self.by_layer()._repr_html_()}"

    def _mean_by(self, *keys: str) -> pl.DataFrame:
        return self.table.group_by(keys).agg(pl.col(_MEASURES).mean(), pl.len().alias("maps")).sort(keys)

    def _sentences(self) -> Iterator[str]:
        table = self.table
        maps = table.filter(pl.col("nullity") > 0)
        texts = table["text"].n_unique()
        over = f"over {texts} {'text' if texts == 1 else 'texts'}"
        if maps.is_empty():
            yield (
                f"None of {len(table)} attention maps {over} has a null space: "
                "every direction of the weights has an effect."
            )
            return
        yield (
            f"{len(maps)} of {len(table)} attention maps ({100 * len(maps) / len(table):.0f} %) {over} "
            "have a null space: some directions of the weights have no effect on the head's output."
        )
        share = float(table["null_share"].mean())  # pyright: ignore[reportArgumentType] a float
        worst = table.group_by("kind", "layer").agg(pl.col("null_share").mean()).sort("null_share")[-1]
        yield (
            f"On average {100 * share:.1f} % of the squared attention weight lies in the null space and has no effect "
            f"on the output; most in {worst['kind'][0]} layer {worst['layer'][0]} "
            f"({100 * worst['null_share'][0]:.1f} %)."
        )
        types = self.received().group_by("key_type").agg(pl.col("raw", "effective").mean())
        lost = types.with_columns(lost=pl.col("raw") - pl.col("effective")).sort("lost")[-1]
        if len(lost) and lost["lost"][0] > 0:
            yield (
                f"{lost['key_type'][0]} receives {100 * lost['raw'][0]:.1f} % of raw attention, "
                f"{100 * lost['effective'][0]:.1f} % of effective attention."
            )


def merge_token_types(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the token type table from rows of several parts: means weighted by query tokens."""
    keys = ["kind", "layer", "head", "query_type", "key_type"]
    weighted = [(pl.col(name) * pl.col("queries")).sum().alias(name) for name in ("raw", "effective")]
    sums = parts.group_by(keys, maintain_order=True).agg(pl.col("queries").sum(), *weighted)
    means = [pl.col(name) / pl.col("queries") for name in ("raw", "effective")]
    return sums.with_columns(means).select(list(TOKEN_TYPE_COLUMNS)).sort("kind", "layer", "head", maintain_order=True)
