"""What a structure analysis found, in sentences and numbers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from identilens.runs.result import Finding
from identilens.runs.tables import counted, percent
from identilens.studies.perturbation_views import NORM_NAMES

_Said = tuple[str, dict[str, Any]]
"""A sentence with the numbers behind it; no words where there is nothing to say."""


def finding(frames: Mapping[str, pl.DataFrame]) -> Finding:
    """Return the finding of the tables ``table``, ``texts``, ``pairs``, ``stability`` and ``correlations``."""
    heads = frames["table"]
    parts: Sequence[tuple[Callable[[pl.DataFrame], _Said], str]] = (
        (_subspace, "table"),
        (_patterns, "table"),
        (_stability, "stability"),
        (_projection, "texts"),
        (_pairs, "pairs"),
        (_norms, "correlations"),
    )
    said = [say(frames[name]) for say, name in parts]
    numbers = {name: value for _, measured in said for name, value in measured.items()}
    n, count = heads["length"][0], len(heads)
    headline = [
        (
            f"{numbers['full_heads']} of {count}",
            f"heads whose R is the whole space of {n} dimensions",
        ),
        (f"{numbers['dim_95']:.1f}", "directions hold 95 % of R's spectrum (mean over heads)"),
        (
            f"{numbers['patterned_heads']} of {count}",
            f"heads show a simple pattern at l = {heads['threshold'][0]:.4g}",
        ),
    ]
    within = numbers.get("spearman_structure")
    if within is not None:
        headline.append(
            (f"{within:.2f}", "rank correlation of ‖·‖_S with the change of the final state")
        )
    return Finding("\n".join(words for words, _ in said if words), numbers, headline)


def _subspace(heads: pl.DataFrame) -> _Said:
    n, texts = heads["length"][0], heads["texts"][0]
    full = heads.filter(pl.col("dim_r") == n)
    most = max(full["texts_to_fill"].to_list(), default=None)
    numbers = {
        "texts": texts,
        "length": n,
        "heads": len(heads),
        "full_heads": len(full),
        "texts_to_fill": most,
        "dim_half": heads["dim_half"].mean(),
        "dim_95": heads["dim_95"].mean(),
    }
    after = "" if most is None else f", after {counted(most, 'text')} at the latest"
    return (
        f"{counted(texts, 'text')} of {counted(n, 'token')}: R is the whole space in {len(full)} of {len(heads)} "
        f"heads{after}. On average, {numbers['dim_half']:.1f} directions are visible in at least half of the texts, "
        f"and {numbers['dim_95']:.1f} hold 95 % of the spectrum."
    ), numbers


def _patterns(heads: pl.DataFrame) -> _Said:
    named = ", ".join(
        f"{name} {count}" for name, count in heads["pattern"].value_counts(sort=True).iter_rows()
    )
    numbers = heads.select(
        pl.first("threshold", "representatives"),
        patterned_heads=(~pl.col("pattern").is_in(["mixed", "empty"])).sum(),
        changed_heads=(pl.col("pattern") != pl.col("effective_pattern")).sum(),
    ).row(0, named=True)
    changed = numbers["changed_heads"]
    return (
        f"Structures W of {numbers['representatives']} representatives at l = {numbers['threshold']:.4g}, by their "
        f"best pattern: {named}; {changed} of {len(heads)} heads look different in effective attention."
    ), numbers


def _stability(stability: pl.DataFrame) -> _Said:
    steady = stability.filter(pl.col("clusters") == pl.col("clusters").max()).drop_nulls("to_all")
    if not len(steady):
        return "", {}
    apart = steady["to_all"].mean()
    return (
        f"With {steady['clusters'][0]} clusters, W differs from the W of all texts by {percent(apart)} (Frobenius, "
        "mean over heads)."
    ), {"to_all": apart}


def _projection(texts: pl.DataFrame) -> _Said:
    signs = texts.drop_nulls("negative")
    if not len(signs):
        return "", {}
    numbers = signs.select(
        negative_maps=(pl.col("least") < -1e-9).mean(),
        negative_entries=pl.col("negative").mean(),
        least_entry=pl.col("least").min(),
        row_sum_error=pl.col("row_sum_error").max(),
    ).row(0, named=True)
    return (
        f"Naim & Asher's projection has negative entries on {percent(numbers['negative_maps'])} of the heads and texts "
        f"({percent(numbers['negative_entries'])} of all entries, the least {numbers['least_entry']:.3f}); row sums "
        f"are kept to {numbers['row_sum_error']:.1e}."
    ), numbers


def _pairs(pairs: pl.DataFrame) -> _Said:
    able = pairs.drop_nulls("disagree")
    if not len(able):
        return "", {}
    row = able.select(pl.col("disagree", "change_second").mean()).row(0, named=True)
    return (
        f"Weights that are equivalent under one text are not so under another in {percent(row['disagree'])} of "
        f"{len(able):,} cases; the other text's output moves by {percent(row['change_second'])}."
    ), row


def _norms(correlations: pl.DataFrame) -> _Said:
    within = dict(correlations.select("norm", "within_spearman").iter_rows())
    if not within:
        return "", {}
    labels = NORM_NAMES | {"structure_effective": "‖·‖_S with W from effective attention"}
    named = ", ".join(
        f"{label} {'undefined' if within[name] is None else f'{within[name]:.2f}'}"
        for name, label in labels.items()
        if name != "output"
    )
    numbers = {f"spearman_{name}": value for name, value in within.items()}
    return (
        f"Rank correlation of norms with the change of the final hidden state, within heads: {named}.",
        numbers,
    )
