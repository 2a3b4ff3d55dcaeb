"""Corollary 2 of Wen et al. 2023 in its own setting: balance of minimisers of the squared loss as λ goes to 0."""

from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.minimiser import minimise
from identilens.lab.dyck.prefixes import all_prefixes
from identilens.reproduce.options import Corollary2Settings
from identilens.reproduce.record import Reproduction
from identilens.runs.progress import watched
from identilens.runs.tables import markdown_table


def corollary2(settings: Corollary2Settings, _: Path, **run: Any) -> Reproduction:
    """Return the balance of minimisers of the squared loss as L2 regularisation goes to 0.

    The model is Eq. 6 after the first layer of Eq. 19, with g fully connected with three hidden layers, for two types
    of brackets and depth 2. C_LN is 0.1: with 0 a smaller W_V always lowers the objective, so there is no minimiser.
    """
    config = DyckConfig(
        max_depth=2,
        block="paper",
        first_layer="one-hot",
        num_hidden_layers=1,
        hidden_size=settings.hidden,
        projection_widths=[[settings.hidden] * 3],
        projection_residual=False,
        norm_constant=0.1,
        initializer_range=0.8 / settings.hidden**0.5,
    )
    rows, runs = [], list(product(settings.lengths, range(settings.seeds)))
    strengths = sorted(settings.strengths, reverse=True)
    with watched("runs", True) as report:
        for done, (length, seed) in enumerate(runs, 1):
            prefixes = all_prefixes(config.language, length)
            for minimum in minimise(config, prefixes, strengths, seed, settings.iterations):
                constant = length * minimum["largest_violation"]
                setting = {"length": length, "strength": minimum["strength"], "seed": seed}
                rows.append({**setting, **minimum, "constant": constant})
            if report:
                report(done, len(runs), f"N = {length}, seed {seed}")
    table = pl.DataFrame(rows)
    best = nearest(table)
    small = pl.col("strength", "loss", "objective").map_elements(
        lambda value: f"{value:.1e}", return_dtype=pl.String
    )
    ends = table.sort("strength", descending=True).group_by("length", "seed", maintain_order=True)
    fallen = ends.agg(fell=pl.col("violation").last() < pl.col("violation").first())["fell"]
    least = table.filter(pl.col("strength") == pl.min("strength"))
    largest = least.group_by("length", maintain_order=True).agg(pl.max("constant"))
    constants = ", ".join(f"{value:.2f} (N = {length})" for length, value in largest.iter_rows())
    findings = (
        "Corollary 2 says that approximate balance holds for minimisers of the squared loss with L2 regularisation, as "
        "its strength λ goes to 0: S ≤ (C/N) P for all queries and pairs, with one constant C. For each N and λ the "
        "seed with the least objective, and the range of the violation over seeds:\n\n"
        f"{markdown_table(best.drop('norm', 'condition').with_columns(small))}\n\n"
        "`constant` is N times the largest S/P, the least C that the model needs; `gradient` is the norm of the "
        "gradient divided by λ ‖θ‖. At the least λ the largest constant of any seed is "
        f"{constants}. From the largest to the least λ the violation fell in {fallen.sum()} of {len(fallen)} runs. "
        "Minima are local: different seeds end in different minima."
    )
    return Reproduction(settings.recorded(), {"runs": table, "best": best}, findings)


def nearest(table: pl.DataFrame) -> pl.DataFrame:
    """Return, for each N and λ, the seed with the least objective, and the violations of all seeds."""
    groups = ["length", "strength"]
    least, most = pl.min("violation").over(groups), pl.max("violation").over(groups)
    ranked = table.with_columns(least_violation=least, most_violation=most).sort("objective")
    return ranked.unique(groups, keep="first", maintain_order=True).sort(
        "length", "strength", descending=[False, True]
    )
