"""Rows that are drawn from all: which ones these are, and what they say of the mean over all rows."""

from collections.abc import Sequence
from math import inf

import numpy as np
import polars as pl

from identilens.runs.tables import HEAD

ALIKE = 1e-9
"""Spread of drawn values that says that they are alike: what they do not have in common was not met."""

ABOVE, BELOW, OPEN = "above 0 in every alternative", "below 0 in every alternative", "open"
"""What the ends of a mean say of its sign."""

_FEW = 4
"""Fewest drawn rows whose spread says something of a mean."""

_STREAM = 0x5EED
"""Tells the draw of rows apart from other uses of a run's seed."""


def drawn_rows(
    seed: int, text: int, layer: int, kind: str, population: int, count: int
) -> list[int]:
    """Return the numbers of rows of a layer on one text that are drawn, without repetition, in order.

    They depend on nothing but the seed and the place, so that a resumed run draws the same ones.
    """
    places = [_STREAM, seed, text, layer, *kind.encode()]
    random, count = np.random.default_rng(places), min(count, population)
    return sorted(random.choice(population, size=count, replace=False).tolist())


def mean_of_rows(
    table: pl.DataFrame,
    by: Sequence[str],
    least: float = -inf,
    most: float = inf,
) -> pl.DataFrame:
    """Return the mean value of functionals over all rows, and the mean ends that the drawn rows tell.

    Rows that were not drawn have no ends. The mean end is the mean value plus the mean of end − value in the drawn
    rows, within the values that it can have (Cochran 1977, section 7.2, b = 1): unbiased, as each row is drawn with the
    same probability. ``lo_error`` and ``hi_error`` are standard errors, of ``rows`` drawn from ``population`` as if
    without regard to layers: 0 where all rows were, null from fewer than four, or if all drawn rows are alike. The
    ``verdict`` is on the sign of the mean: estimated ends are taken two standard errors farther, and without a known
    error it is open.

    Args:
        table: Functionals of rows, with ``functional``, ``tolerance``, ``value``, ``lo`` and ``hi``.
        by: Columns by which means are taken.
        least: Least value that a functional can have.
        most: Greatest value that it can have.
    """
    ends, value, rows = pl.col("lo", "hi"), pl.col("value"), pl.col("rows")
    names = [*by, "functional"]
    rows_once = table.unique([*HEAD, "query", "functional"], keep="first", maintain_order=True)
    means = rows_once.group_by(names, maintain_order=True).agg(value.mean(), population=pl.len())
    drawn = table.drop_nulls("lo").with_columns(ends - value)
    known = drawn.group_by([*names, "tolerance"], maintain_order=True).agg(
        ends.mean(), ends.std().name.suffix("_error"), rows=pl.len()
    )
    left, error = 1 - rows / pl.col("population"), pl.col("lo_error", "hi_error")
    known_error = (
        pl.when(left == 0)
        .then(0.0)
        .when(rows >= _FEW, error > ALIKE)
        .then(error * (left / rows).sqrt())
        .name.keep()
    )
    joined = means.join(known, on=names, how="left", maintain_order="left")
    means = joined.select(
        *names,
        "tolerance",
        "value",
        (ends + value).clip(least, most),
        known_error,
        "rows",
        "population",
    )
    above = pl.col("lo") > 2 * pl.col("lo_error")
    below = pl.col("hi") < -2 * pl.col("hi_error")
    verdict = pl.when(above).then(pl.lit(ABOVE)).when(below).then(pl.lit(BELOW))
    return means.with_columns(verdict=verdict.otherwise(pl.lit(OPEN)))
