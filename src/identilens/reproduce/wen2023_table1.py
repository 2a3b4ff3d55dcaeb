"""Table 1 of Wen et al. 2023: attention variation by types, depth and layers."""

from math import isnan
from pathlib import Path

import polars as pl

from identilens.lab.dyck.settings import DyckSetting
from identilens.lab.dyck.train.result import DyckRuns
from identilens.reproduce.record import Reproduction
from identilens.reproduce.wen2023 import LOST, RANDOM, FewSeeds, Run, deep, gpt, recipe, reproduction, run_settings
from identilens.runs.tables import markdown_table

SETTINGS = [
    DyckSetting(f"{types} types, depth {depth}, {layers} layers", gpt(layers, types=types, depth=depth), deep())
    for types in (2, 3)
    for depth in (4, 8)
    for layers in (2, 3)
]


def table1(out: Path, run: Run) -> Reproduction:
    """Return our attention variation for the cells of Table 1."""
    result = run_settings(out, SETTINGS, run)
    table = by_layer(result)
    findings = (
        f"{markdown_table(table, 2)}\n\n{LOST} Variation is the mean of ‖A₁ − A₂‖² over pairs of seeds, ± standard "
        "error over seeds, on the prefix with all brackets at all depths, for causal patterns without the start token. "
        "variation.csv has the same with the start token. Random rows: uniform on the simplex. "
        f"{RANDOM}"
    )
    return reproduction(
        "wen2023-table1", "Wen et al. 2023, Table 1", result, SETTINGS, run, findings, {"table1": table}
    )


def by_layer(result: DyckRuns) -> pl.DataFrame:
    """Return variation with a column for each layer, without the start token."""
    rows = result.variation.filter(~pl.col("with_start"))
    # Two seeds have no standard error.
    cells = [
        f"{value:.3f}" + ("" if isnan(error) else f" ± {error:.3f}")
        for value, error in rows.select("value", "error").iter_rows()
    ]
    places = [f"layer {layer + 1}" for layer in rows["layer"]]
    rows = rows.with_columns(pl.Series("cell", cells, pl.String), pl.Series("place", places, pl.String))
    index = ["setting", "seeds", "size", "even_on_simplex"]
    return rows.pivot("place", index=index, values="cell").rename({"even_on_simplex": "random rows"})


RECIPE = recipe(table1, FewSeeds)
