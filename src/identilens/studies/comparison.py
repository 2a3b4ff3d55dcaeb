"""Results of one study beside each other, measure by measure."""

from collections.abc import Sequence

import polars as pl

from identilens.errors import InputError
from identilens.runs.result import Result

_PLACES = ("kind", "layer", "head", "alternative", "state", "setting")
_COLUMNS = "run", "measure", "mean", "difference", "error", "places"


def compare(*results: Result) -> pl.DataFrame:
    """Return the mean of each measure of results of one study, and its difference from the first result.

    Results may be of other texts, other models, or checkpoints of one training run. A measure is a decimal number of
    the main table. One row for each result and measure: the mean over texts; the difference over the places (kind,
    layer, head) that both results have, and how many these are; and its standard error over texts. Where the texts are
    the same, differences are taken text by text, and errors are those of paired differences; else those of two
    independent means.

    Raises:
        InputError: For a single result, or results of different studies.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> first, second = (idl.audit(lens, text, layers=3, certain_rows=0, examples=0) for text in idl.examples()[:2])
        >>> idl.compare(first, second).columns
        ['run', 'measure', 'mean', 'difference', 'error', 'places']
    """
    kinds = {one.analysis for one in results}
    if len(kinds) != 1 or len(results) < 2:
        raise InputError(
            f"expected two or more results of one study; got {len(results)} of {', '.join(sorted(kinds)) or 'none'}."
        )
    columns = results[0].schema["table"]
    measures = [name for name, kind in columns.items() if kind.is_float()]
    places = [name for name in _PLACES if name in columns]
    keys, texts = [*places, "text"], results[0].provenance["texts"]
    names = [str(one.provenance["model"].get("name")) for one in results]
    every, frames = [], []
    for name, result in zip(names, results, strict=True):
        table = result.table
        if "text" not in columns:
            table = table.with_columns(text=pl.lit(0))
        by_text = table.group_by(keys, maintain_order=True).agg(pl.col(measures).mean())
        values = by_text.unpivot(measures, index=keys, variable_name="measure")
        every.append(values.filter(pl.col("value").is_finite()))
        means = every[-1].group_by("measure", maintain_order=True).agg(mean=pl.col("value").mean())
        if frames:
            paired = result.provenance["texts"] == texts
            differences = _differences(every[0], every[-1], places, paired=paired)
            means = means.join(differences, on="measure", how="left", maintain_order="left")
        number = names[: len(every)].count(name)
        run = f"{name} ({number})" if names.count(name) > 1 else name
        frames.append(means.with_columns(run=pl.lit(run)))
    return pl.concat(frames, how="diagonal").select(_COLUMNS)


def _differences(
    first: pl.DataFrame, second: pl.DataFrame, places: Sequence[str], *, paired: bool
) -> pl.DataFrame:
    """Return the mean difference of each measure over places in common, and its error over texts."""
    how = "inner" if paired else "full"
    keys = [*places, "measure", "text"]
    values = first.join(second, on=keys, how=how, coalesce=True, suffix="_second")
    a, b = pl.col("value"), pl.col("value_second")
    variance = (b - a).var() / pl.len() if paired else a.var() / a.count() + b.var() / b.count()
    by_place = values.group_by(*places, "measure").agg(difference=b.mean() - a.mean())
    by_text = values.group_by("text", "measure").agg(a.mean(), b.mean())
    errors = by_text.group_by("measure").agg(error=variance.sqrt())
    apart = by_place.drop_nulls("difference").group_by("measure")
    means = apart.agg(pl.col("difference").mean(), places=pl.len().cast(pl.Int64))
    return means.join(errors, on="measure")
