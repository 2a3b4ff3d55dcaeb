"""The finding of a mixing result in sentences and numbers."""

import polars as pl

from identilens.runs.result import Finding
from identilens.runs.tables import percent
from identilens.studies.mixing.series import Series

_AGREES = 0.8  # Correlation from which two pictures are called much the same.
_ENDS = {"first": 0, "last": -1}


def finding(series: Series) -> Finding:
    """Return how much of a token is still itself, where context comes from, and what attention alone would say."""
    by_kind = _by_kind(series.own, series)
    share = pl.col("standard_error") / pl.col("contribution")
    typical = series.table.filter(pl.col("contribution") > 0).select(share.median()).item()
    sentences = [_own_sentence(kind, rows) for kind, rows in by_kind]
    estimated = (
        f"Norms are estimates; a contribution's typical standard error is {percent(typical)} of it."
    )
    sentences.append(estimated if typical else "All norms are exact.")
    near = {kind: _near(rows) for kind, rows in _by_kind(series.positions, series)}
    sentences += [_near_sentence(kind, rows) for kind, rows in near.items() if len(rows) > 1]
    agreement = {kind: _agreement(rows) for kind, rows in _by_kind(series.correlation, series)}
    sentences += [_rollout_sentence(kind, rows) for kind, rows in agreement.items() if len(rows)]
    numbers: dict[str, float | int | None] = {"typical_error": typical}
    for kind, rows in by_kind:
        numbers |= {f"{kind}_own_{place}": rows["median"][at] for place, at in _ENDS.items()}
        numbers[f"{kind}_not_largest_last"] = rows["not_largest"][-1]
    for kind, rows in near.items():
        numbers |= {
            f"{kind}_next_to_it_{place}": rows["share"][at]
            for place, at in _ENDS.items()
            if len(rows)
        }
    for kind, rows in agreement.items():
        numbers |= {
            f"{kind}_{name}_rollout_last": rows[name][-1]
            for name in ("raw", "effective")
            if len(rows)
        }
    return Finding("\n".join(sentences), numbers, _headline(series))


def _by_kind(frame: pl.DataFrame, series: Series) -> list[tuple[str, pl.DataFrame]]:
    return [(kind, frame.filter(kind=kind)) for kind in series.own_kinds]


def _own_sentence(kind: str, rows: pl.DataFrame) -> str:
    first, last = rows.row(0, named=True), rows.row(-1, named=True)
    return (
        f"Of each {kind} hidden state, the token at its own position makes up {percent(first['median'])} "
        f"at layer {first['layer']} and {percent(last['median'])} at layer {last['layer']} (medians over "
        f"{first['tokens']} tokens); there, {percent(last['not_largest'])} of the tokens are not the largest "
        "contributor to their own hidden state."
    )


def _near(positions: pl.DataFrame) -> pl.DataFrame:
    """Return the share of context that comes from the tokens on both sides, by layer."""
    near = positions.filter(pl.col("offset").abs() == 1)
    return near.group_by("layer").agg(pl.col("share").sum()).sort("layer")


def _near_sentence(kind: str, near: pl.DataFrame) -> str:
    (first, early), (last, late) = near.row(0), near.row(-1)
    return (
        f"Of the context in {'an' if kind == 'encoder' else 'a'} {kind} hidden state, {100 * early:.0f} % comes from "
        f"the tokens next to it at layer {first} and {100 * late:.0f} % at layer {last}."
    )


def _agreement(correlation: pl.DataFrame) -> pl.DataFrame:
    """Return how both rollouts correlate with contributions to context: layer, raw, effective."""
    known = correlation.filter((pl.col("pairs") == "context") & pl.col("pearson").is_not_null())
    wide = known.pivot("rollout", index="layer", values="pearson").drop_nulls().sort("layer")
    return wide if {"raw", "effective"} <= set(wide.columns) else wide.clear()


def _rollout_sentence(kind: str, agreement: pl.DataFrame) -> str:
    at = [
        f"{row['raw']:.2f} (raw) and {row['effective']:.2f} (effective) at layer {row['layer']}"
        for row in agreement[[0, -1]].iter_rows(named=True)
    ]
    agree = min(agreement["raw"][-1], agreement["effective"][-1]) >= _AGREES
    answer = "much the same" if agree else "another"
    return (
        f"At the last layer attention alone gives {answer} answer about which context is mixed into {kind} hidden "
        f"states: without the token itself, attention rollout correlates with contributions at "
        f"{' and '.join(dict.fromkeys(at))}."
    )


def _headline(series: Series) -> list[tuple[str, str]]:
    rows = series.own.filter(kind=series.own_kinds[0])
    first, last = rows.row(0, named=True), rows.row(-1, named=True)
    end = last["layer"]
    return [
        (
            f"{100 * first['median']:.0f} %",
            f"of a hidden state is its own token at layer {first['layer']} (median)",
        ),
        (f"{100 * last['median']:.0f} %", f"of it at layer {end} (median)"),
        (
            f"{100 * last['not_largest']:.0f} %",
            f"of tokens are not their own largest contributor at layer {end}",
        ),
        (
            f"{series.table.filter(layer=end).height:,}",
            "pairs of hidden and input token in every layer",
        ),
    ]
