"""How constructions are drawn."""

from math import floor

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import lines

_NAMES = {"uniform": "uniform attention (Corollary 1)", "balanced": "balanced attention (Theorem 1)"}


def by_length(table: pl.DataFrame, measure: str, title: str) -> AnyChart:
    """Return a share by length, one line for each construction and size of the perturbation."""
    names = [name_of(name, size) for name, size in table.select("construction", "off_balance").iter_rows()]
    drawn = table.select("length", measure, pl.Series("built", names))
    # Most shares are near 1: the axis starts at the tenth below the lowest.
    lowest = min(0.9, floor(10 * table.select(pl.col(measure).min()).item()) / 10)
    return lines(
        drawn, "length", measure, "built", log_x=True, x_title="Brackets", y_title="Share", color_title="Construction",
        title=title, y_domain=(lowest, 1.0),
    )  # fmt: skip


def name_of(construction: str, off_balance: float) -> str:
    """Return a construction in words."""
    return _NAMES[construction] if off_balance == 0 else f"{off_balance:g} logits off balance"
