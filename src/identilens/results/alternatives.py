"""The result of looking for alternatives: other weights with the same output, and what the model made of them."""

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

ALTERNATIVE_COLUMNS: dict[str, Any] = {
    "text": pl.Int64,
    "layer": pl.Int64,
    "head": pl.Int64,
    "kind": pl.String,
    "alternative": pl.String,
    "n_query": pl.Int64,
    "n_key": pl.Int64,
    "d_k": pl.Int64,
    "simplex_nullity": pl.Int64,
    "mean_total_variation": pl.Float64,
    "largest_total_variation": pl.Float64,
    "output_error": pl.Float64,
    "logit_rank": pl.Int64,
    "dimension": pl.Int64,
    "formula": pl.Int64,
    "hidden_change": pl.Float64,
    "logits_change": pl.Float64,
    "loss_change": pl.Float64,
    "note": pl.String,
}
"""Columns of the alternatives table: one row for each text, head and alternative."""

CHANGE_COLUMNS: dict[str, Any] = {
    "text": pl.Int64,
    "layer": pl.Int64,
    "head": pl.Int64,
    "kind": pl.String,
    "alternative": pl.String,
    "state": pl.String,
    "state_layer": pl.Int64,
    "largest_change": pl.Float64,
    "relative_change": pl.Float64,
}
"""Columns of the change table: what each alternative, put back into the model, changed in each of its states."""


@dataclass(frozen=True)
class Alternatives:
    """Alternatives of some heads on some texts, put back into the model.

    Attributes:
        table: One row for each text, head and alternative; columns as in `ALTERNATIVE_COLUMNS`.
        changes: What changed in each hidden state, the logits and the loss; columns as in `CHANGE_COLUMNS`.
        provenance: What made it.
        matrices: ``text{t}.layer{l}.head{h}.{kind}.{raw|effective|alternative_<name>}``, with
            ``queries_<name>`` and ``keys_<name>`` for those that queries and keys were found for.
        tokens: Tokens of each text by sequence ("encoder", "decoder").
    """

    table: pl.DataFrame
    changes: pl.DataFrame
    provenance: dict[str, Any]
    matrices: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    tokens: Mapping[int, dict[str, list[str]]] = field(default_factory=dict, repr=False)

    def summary(self) -> str:
        """Return the finding in a few sentences."""
        return "\n".join(self._sentences())

    def show(self) -> None:
        """Print the finding and the table."""
        Console().print(self.summary())
        shown = ["layer", "head", "alternative", "mean_total_variation", "output_error", "hidden_change"]
        if self.table["text"].n_unique() > 1:
            shown.insert(0, "text")
        names = {"mean_total_variation": "mean TV", "output_error": "output", "hidden_change": "final hidden"}
        print_table("Distance from the weights, relative change of output", self.table.select(shown).rename(names))
        for name, note in self.table.filter(pl.col("note") != "").select("alternative", "note").unique().iter_rows():
            Console().print(f"{name}: {note}", highlight=False, markup=False)

    def save(self, folder: str | Path) -> None:
        """Write the result as a folder that `load` reads.

        Raises:
            OutputFolderError: If the folder holds another run, or cannot be written.
        """
        tables = {"table": self.table, "changes": self.changes}
        save_run(folder, self.provenance, tables, lambda path: write_all_matrices(path, self.matrices, self.tokens))

    @classmethod
    def load(cls, folder: str | Path) -> "Alternatives":
        """Return the result that a folder holds; matrices are read when they are looked at.

        Raises:
            OutputFolderError: If the folder holds no finished run of this kind.
        """
        tables, record = load_run(folder, "alternatives", ("table", "changes"))
        store = StoredMatrices(Path(folder) / "matrices")
        return cls(tables["table"], tables["changes"], record, store, store.tokens)

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one self-contained HTML file and return its path."""
        from identilens.report import write_alternatives_report

        return write_alternatives_report(self, Path(path))

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.summary())}</p>{self.table._repr_html_()}"

    def _sentences(self) -> Iterator[str]:
        found = self.table.filter(pl.col("mean_total_variation").is_not_null())
        keys = ["text", "layer", "head", "kind"]
        heads = found.select(keys).n_unique()
        free = found.filter(pl.col("simplex_nullity") > 0).select(keys).n_unique()
        yield (
            f"{free} of {heads} attention maps have a simplex null space: directions that change neither the output "
            "nor the sum of a row" + ("." if free else ", so that the output allows no other weights.")
        )
        for name in ("far", "maximum_entropy", "realisable", "parameters"):
            rows = found.filter(pl.col("alternative") == name)
            if len(rows):
                yield _SENTENCES[name].format(
                    count=len(rows),
                    distance=rows["mean_total_variation"].mean(),
                    largest=rows["largest_total_variation"].max(),
                    change=rows["hidden_change"].max(),
                )


_SENTENCES = {
    "far": "Weights a total variation distance of {distance:.2f} away on average (up to {largest:.2f} in a row) "
    "change the final hidden state by at most {change:.1e} of its size.",
    "maximum_entropy": "The most even weights with the same output, which queries and keys of the head's own size "
    "produce, lie {distance:.2f} away on average and change it by at most {change:.1e}.",
    "realisable": "Other queries and keys of the same size, found by walking, move the weights by {distance:.2f} on "
    "average and change it by at most {change:.1e}.",
    "parameters": "With other query and key parameters the model itself computes weights {distance:.2f} away on "
    "average and a final hidden state that differs by at most {change:.1e}.",
}
