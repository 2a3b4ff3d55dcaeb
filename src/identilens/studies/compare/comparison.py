"""Results of one study beside each other, measure by measure."""

import polars as pl

from identilens.errors import InputError
from identilens.runs.result import Result

_PLACES = [
    "kind", "layer", "head", "alternative", "state", "setting", "aim", "tolerance", "functional", "pattern", "corpus",
    "explanation", "intervention", "outcome", "experiment", "probe", "distance", "layer_trained", "layer_tested",
    "offset",
]  # fmt: skip


def compare(*results: Result) -> pl.DataFrame:
    """Return the mean of each measure of results of one study, and its difference from the first result.

    Results may be of other texts, other models, or checkpoints of one training run. A measure is a decimal number of
    the main table. One row for each result and measure: the mean over texts; the difference over the places (kind,
    layer, head, functional, tolerance, pattern, ...) that both results have, and how many these are; and its standard
    error over texts. Where the texts are the same, differences are taken text by text, and errors are those of paired
    differences; else those of two independent means.

    Raises:
        InputError: For a single result, or results of different studies.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> first, second = (idl.audit(lens, text, layers=3, certain_rows=0, examples=0) for text in idl.examples()[:2])
        >>> idl.compare(first, second).columns
        ['run', 'measure', 'mean', 'difference', 'error', 'places']
    """
    kinds = {getattr(result, "analysis", "no study") for result in results}
    if len(kinds) != 1 or len(results) < 2 or "no study" in kinds:
        raise InputError(
            f"expected two or more results of one study; got {len(results)} of {', '.join(sorted(kinds)) or 'none'}."
        )
    first, texts = _values(results[0]), results[0].provenance["texts"]
    frames = []
    for number, result in enumerate(results, 1):
        run = f"{result.provenance['model'].get('name')} ({number})"
        paired = result.provenance["texts"] == texts
        differences = _differences(first, _values(result), paired=paired)
        frames.append(differences.select(pl.lit(run).alias("run"), pl.exclude("places"), "places"))
    return pl.concat(frames)


def _values(result: Result) -> pl.DataFrame:
    """Return each measure of a result at each place, the mean over each text."""
    columns = result.schema["table"]
    measures = [name for name, kind in columns.items() if kind.is_float()]
    keys = [name for name in _PLACES if name in columns]
    text = pl.coalesce(pl.selectors.by_name("text", require_all=False), 0).alias("text")
    means = result.table.group_by(*keys, text, maintain_order=True).agg(pl.col(measures).mean())
    index = [*keys, "text"]
    return means.unpivot(measures, index=index, variable_name="measure", value_name="mean").filter(
        pl.col("mean").is_finite()
    )


def _differences(first: pl.DataFrame, second: pl.DataFrame, *, paired: bool) -> pl.DataFrame:
    """Return the mean of each measure, its mean difference over places in common, and the error of that over texts."""
    places = first.drop("mean", "text").columns
    how = "inner" if paired else "full"
    values = first.join(
        second, on=[*places, "text"], how=how, coalesce=True, suffix="_second", nulls_equal=True
    )
    a, b = pl.col("mean"), pl.col("mean_second")
    values = values.filter((a.count() * b.count()).over(places) > 0)
    variance = (b - a).var() / pl.len() if paired else a.var() / a.count() + b.var() / b.count()
    by_text = values.group_by("text", "measure").agg(a.mean(), b.mean())
    by_place = values.group_by(places).agg(difference=b.mean() - a.mean())
    difference = pl.col("difference")
    means = second.group_by("measure", maintain_order=True).agg(a.mean())
    for more in (
        by_place.group_by("measure").agg(difference.mean(), places=difference.count()),
        by_text.group_by("measure").agg(error=variance.sqrt()),
    ):
        means = means.join(more, on="measure", how="left", maintain_order="left")
    return means
