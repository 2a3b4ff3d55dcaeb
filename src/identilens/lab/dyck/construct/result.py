"""The result of building Dyck transformers by hand: how well they do at every length, on balance and off it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.lab.dyck.construct import views
from identilens.runs.result import Finding, Result
from identilens.runs.tables import percent


@dataclass(frozen=True, kw_only=True)
class Constructions(Result):
    """Constructed transformers tested (Wen et al. 2023, Theorem 1 and Corollary 1).

    Attributes:
        table: One row a construction, size of the perturbation in logits, and length.

    Examples:
        >>> import identilens as idl
        >>> built = idl.lab.construct_dyck(lengths=(28,), count=5, off_balance=(0.0, 0.3))
        >>> built.table.select("construction", "off_balance", "length", "support")
        shape: (3, 4)
        ┌──────────────┬─────────────┬────────┬─────────┐
        │ construction ┆ off_balance ┆ length ┆ support │
        │ ---          ┆ ---         ┆ ---    ┆ ---     │
        │ str          ┆ f64         ┆ i64    ┆ f64     │
        ╞══════════════╪═════════════╪════════╪═════════╡
        │ uniform      ┆ 0.0         ┆ 28     ┆ 1.0     │
        │ balanced     ┆ 0.0         ┆ 28     ┆ 1.0     │
        │ balanced     ┆ 0.3         ┆ 28     ┆ 1.0     │
        └──────────────┴─────────────┴────────┴─────────┘
    """

    analysis: ClassVar = "lab dyck construct"
    title: ClassVar = "Constructed Dyck transformers"
    schema: ClassVar = {
        "table": {
            "construction": pl.String, "off_balance": pl.Float64, "length": pl.Int64, "support": pl.Float64,
            "argmax": pl.Float64, "threshold": pl.Float64, "violation": pl.Float64, "largest_violation": pl.Float64,
            "condition": pl.Float64,
        }
    }  # fmt: skip
    keys: ClassVar = {"table": ("construction", "off_balance", "length")}

    def subject(self) -> str:
        """Return the language and the prefixes."""
        settings = self.provenance["settings"]
        return (
            f"Dyck of {settings['types']} types and depth {settings['depth']}, {settings['count']} prefixes of "
            "each length"
        )

    def summary(self) -> Finding:
        """Return the finding: what each construction does at all lengths, or off balance at the longest."""
        longest: Any = self.table["length"].max()
        balanced = self.table.filter(pl.col("off_balance") == 0)
        least = balanced.group_by("construction", maintain_order=True).agg(pl.col("argmax", "support").min())
        numbers, headline = {}, []
        for name, argmax, support in least.iter_rows():
            numbers |= {f"{name}_support": support, f"{name}_argmax": argmax}
            headline.append((percent(argmax), f"right closing brackets to length {longest:,}, {name} attention"))
        return Finding("\n".join(self._sentences(longest)), numbers, headline)

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return how well each construction does at each length, and how far each is from balance."""
        built, balance = ["construction", "off_balance"], ["violation", "largest_violation", "condition"]
        return {
            "Constructions of Corollary 1 and Theorem 1": self.table.drop(balance),
            "Balance of the constructions": self.table.select(built + balance).unique(maintain_order=True),
        }

    def charts(self) -> dict[str, AnyChart]:
        """Return ``argmax`` and ``support`` by length."""
        titles = {"argmax": "Right closing brackets", "support": "Places with exactly the possible next brackets"}
        return {name: views.by_length(self.table, name, f"{title} by length") for name, title in titles.items()}

    def _sentences(self, longest: int) -> Iterator[str]:
        for _, rows in self.table.group_by("construction", "off_balance", maintain_order=True):
            last = rows.filter(pl.col("length") == longest).row(0, named=True)
            if last["off_balance"] == 0:
                name = views.name_of(last["construction"], last["off_balance"])
                yield (
                    f"{name[0].upper()}{name[1:]}: at every length to {longest:,} at least "
                    f"{percent(rows['support'].min())} of the places have exactly the possible next brackets, and "
                    f"{percent(rows['argmax'].min())} of the closing brackets are right; balance violation "
                    f"{rows['violation'].max():.2g}."
                )
            else:
                yield (
                    f"Moved {last['off_balance']:g} logits off balance (violation {last['violation']:.2g}): "
                    f"{percent(last['argmax'])} of the closing brackets right at length {longest:,}."
                )
