"""structure2025, Figure 1: cross attention of a model that reverses a sequence of 20 tokens."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from identilens.lab.reversal.result import Reversal
from identilens.lab.reversal.settings import TaskSettings
from identilens.lab.reversal.task import antidiagonal_match
from identilens.lab.reversal.views import attention
from identilens.reproduce.record import Recipe, Reproduction
from identilens.reproduce.structure2025_reversal import accuracy_table, recorded, trained
from identilens.runs.tables import markdown_table


def structure2025_figure1(settings: TaskSettings, out: Path | None = None, **run: Any) -> Reproduction:
    """Reproduce Figure 1: train both models, and show their attention on the first test input."""
    runs = trained(settings, out, **run)
    accuracy = accuracy_table(runs)
    match = pl.concat([_match(one) for one in runs])
    cells = pl.concat([_cells(one) for one in runs])
    findings = (
        "Accuracy on the test set (tokens, given the right previous tokens), and the draft's:\n\n"
        f"{markdown_table(accuracy)}\n\nThe first test input's attention and the antidiagonal (mass: mean weight "
        "of a row on it; score: cosine; shift: offset of the antidiagonal with most mass; nullity: n − rank(T), mean "
        f"over inputs):\n\n{markdown_table(match)}\n"
    )
    maps = {name: one for model in runs for name, one in model.maps_of(0).items()}
    return Reproduction(
        "structure2025-figure1", "structure2025, Figure 1", recorded(settings),
        {"accuracy": accuracy, "match": match, "attention": cells},
        findings, {"attention": attention(maps, runs[0].source[0].tolist())}, settings.seed,
    )  # fmt: skip


def _match(one: Reversal) -> pl.DataFrame:
    matches = pl.DataFrame([asdict(antidiagonal_match(maps[0])) for maps in one.weights])
    both = pl.concat([one.heads, matches], how="horizontal")
    return both.select(pl.lit(one.model).alias("model"), "head", "mass", "score", "shift", "nullity")


def _cells(one: Reversal) -> pl.DataFrame:
    head = one.best_head()
    return pl.DataFrame(
        {"model": one.model, "head": head, "output": row, "input": column, "weight": weight}
        for row, line in enumerate(one.weights[head, 0].tolist())
        for column, weight in enumerate(line)
    )


RECIPE = Recipe(TaskSettings, structure2025_figure1, "models")
