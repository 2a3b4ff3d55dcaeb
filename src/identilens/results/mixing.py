"""The result of a mixing analysis: how much of each input token is in each hidden token, at every layer."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from jaxtyping import Float
from rich.console import Console

from identilens.errors import InputError
from identilens.results.stored import load_run, percent, print_table, save_run

KIND = pl.Enum(["encoder", "decoder", "cross"])

MIXING_COLUMNS: dict[str, Any] = {
    "text": pl.Int32,
    "kind": KIND,
    "layer": pl.Int16,
    "hidden": pl.Int32,
    "input": pl.Int32,
    "contribution": pl.Float64,
    "standard_error": pl.Float32,
    "norm": pl.Float32,
    "raw_rollout": pl.Float32,
    "effective_rollout": pl.Float32,
}
"""Columns of the mixing table: one row for each text, kind, layer, hidden token and input token, in this order."""

TOKEN_COLUMNS: dict[str, Any] = {
    "text": pl.Int32,
    "kind": KIND,
    "side": pl.Enum(["hidden", "input"]),
    "position": pl.Int32,
    "token": pl.String,
}
"""Columns of the token table: what stands at each hidden and each input position."""

Measure = Literal["contribution", "standard_error", "norm", "raw_rollout", "effective_rollout"]


@dataclass(frozen=True)
class Mixing:
    """Every number of a mixing analysis.

    Layers are indices into the model's hidden states: layer l is what the l-th layer gives, from 1.

    Attributes:
        table: The contributions; columns as in `MIXING_COLUMNS`.
        tokens: The tokens; columns as in `TOKEN_COLUMNS`.
        provenance: What made it.
        tags: The tag of each token where they were given: text, position, tag.
    """

    table: pl.DataFrame
    tokens: pl.DataFrame
    provenance: dict[str, Any]
    tags: pl.DataFrame | None = None

    @property
    def kinds(self) -> list[str]:
        """Kinds of hidden states in the result."""
        return [kind for kind in KIND.categories if (self.table["kind"] == kind).any()]

    def array(
        self, text: int, kind: str | None = None, measure: Measure = "contribution"
    ) -> Float[np.ndarray, "layer hidden input"]:
        """Return one text's contributions, or another column, as an array [layer, hidden token j, input token i].

        Args:
            text: Counts from 0.
            kind: Needed for encoder–decoders, which have three.
            measure: Column of the table.

        Raises:
            InputError: If the result holds no such text or kind.
        """
        kind = self._kind(kind)
        rows = self.table.filter((pl.col("text") == text) & (pl.col("kind") == kind))
        if not len(rows):
            raise InputError(
                f"the result holds no text {text}; it holds 0 to {self.table['text'].max()}. Texts count from 0."
            )
        sizes = [rows[name].n_unique() for name in ("layer", "hidden", "input")]
        return rows[measure].to_numpy().reshape(sizes)

    def names(self, text: int, kind: str | None = None, side: Literal["hidden", "input"] = "hidden") -> list[str]:
        """Return the tokens at one text's hidden or input positions."""
        kind = self._kind(kind)
        here = (pl.col("text") == text) & (pl.col("kind") == kind) & (pl.col("side") == side)
        return self.tokens.filter(here).sort("position")["token"].to_list()

    def own(self) -> pl.DataFrame:
        """Return, for each hidden token at each layer, what the input token at its own position contributes.

        Columns: text, kind, layer, position, token, contribution, standard_error, and largest: whether no other
        input token contributes more. Cross attention relates two sequences and has no own position.
        """
        keys = ["text", "kind", "layer", "hidden"]
        largest = pl.col("contribution").max().over(keys)
        rows = (
            self.table.lazy()
            .filter(pl.col("kind") != "cross")
            .with_columns(largest=pl.col("contribution") >= largest)
            .filter(pl.col("hidden") == pl.col("input"))
            .select(*keys[:3], pl.col("hidden").alias("position"), "contribution", "standard_error", "largest")
        )
        tokens = self.tokens.lazy().filter(pl.col("side") == "hidden").drop("side")
        joined = rows.join(tokens, on=["text", "kind", "position"], how="left", maintain_order="left").collect()
        return joined.select("text", "kind", "layer", "position", "token", "contribution", "standard_error", "largest")

    def by_layer(self) -> pl.DataFrame:
        """Return the median own contribution (Brunner Fig. 3a) and the share not their own largest (3b) a layer."""
        return (
            self.own()
            .group_by("kind", "layer")
            .agg(
                pl.col("contribution").median().alias("median_own"),
                (~pl.col("largest")).mean().alias("not_largest"),
                pl.len().alias("tokens"),
            )
            .sort("kind", "layer")
        )

    def summary(self) -> str:
        """Return the finding in a few sentences."""
        sentences = []
        for (kind,), rows in self.by_layer().group_by("kind", maintain_order=True):
            first, last = rows.row(0, named=True), rows.row(-1, named=True)
            sentences.append(
                f"Of each {kind} hidden state, the token at its own position makes up {percent(first['median_own'])} "
                f"at layer {first['layer']} and {percent(last['median_own'])} at layer {last['layer']} (medians over "
                f"{first['tokens']} tokens); there, {percent(last['not_largest'])} of the tokens are not the largest "
                "contributor to their own hidden state."
            )
        errors = self.table.filter(pl.col("contribution") > 0).select(
            (pl.col("standard_error") / pl.col("contribution")).median()
        )
        typical = errors.item()
        sentences.append(
            "All norms are exact."
            if not typical
            else f"Norms are estimates; a contribution's typical standard error is {percent(typical)} of it."
        )
        return "\n".join(sentences)

    def show(self) -> None:
        """Print the finding and the medians by layer."""
        Console().print(self.summary())
        print_table("Own contribution by layer", self.by_layer())

    def with_tags(self, tags: pl.DataFrame) -> "Mixing":
        """Return the same result with tags of its tokens, for the report's figures by part of speech.

        Args:
            tags: From `identilens.mixing.tag_tokens`.
        """
        return replace(self, tags=tags)

    def save(self, folder: str | Path) -> None:
        """Write the result as a folder that `load` reads.

        Raises:
            OutputFolderError: If the folder holds something else, or cannot be written.
        """
        tags = {} if self.tags is None else {"tags": self.tags}
        save_run(folder, self.provenance, {"table": self.table, "tokens": self.tokens, **tags})

    @classmethod
    def load(cls, folder: str | Path) -> "Mixing":
        """Return the result that a folder holds.

        Raises:
            OutputFolderError: If the folder holds no finished mixing analysis.
        """
        tables, record = load_run(folder, "mixing", ("table", "tokens"))
        tags = Path(folder) / "tags.parquet"
        return cls(
            tables["table"].cast(pl.Schema(MIXING_COLUMNS)),
            tables["tokens"].cast(pl.Schema(TOKEN_COLUMNS)),
            record,
            pl.read_parquet(tags) if tags.is_file() else None,
        )

    def to_html(self, path: str | Path, *, track: str | None = None) -> Path:
        """Write the report as one self-contained HTML file and return its path.

        Args:
            path: The file to write.
            track: A token whose context the page opens on; the first text's first word when not given.

        Raises:
            InputError: If no text holds the token, naming some that occur.
            OutputFolderError: If the file cannot be written.
        """
        from identilens.report import write_mixing_report

        return write_mixing_report(self, path, track=track)

    def _repr_html_(self) -> str:
        return f"<p>{self.summary()}</p>{self.by_layer()._repr_html_()}"

    def _kind(self, kind: str | None) -> str:
        kinds = self.kinds
        if kind is None and len(kinds) == 1:
            return kinds[0]
        if kind not in kinds:
            raise InputError(f"expected one of the kinds {', '.join(kinds)}; got {kind!r}. Pass kind=...")
        return kind
