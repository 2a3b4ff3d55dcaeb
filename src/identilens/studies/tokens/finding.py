"""What token identifiability finds, in plain words."""

from collections.abc import Iterator
from typing import Any

import polars as pl

from identilens.runs.result import Finding
from identilens.runs.tables import percent
from identilens.studies.tokens.views import compared, probe_words, same_layer


def finding(table: pl.DataFrame, means: pl.DataFrame) -> Finding:
    """Return how many tokens each probe recovers, and how many a guess would, from a result's table and means."""
    folds = table.group_by("fold").agg(pl.col("tokens").max(), pl.col("sentences").max())
    same = same_layer(means).filter(pl.col("share") == pl.col("share").max())
    best = (
        same.filter(pl.col("layer_tested") == pl.col("layer_tested").max())
        .sort("rate")[-1]
        .row(0, named=True)
    )
    chance = means["chance"].mean()
    numbers = {
        "best_rate": best["rate"],
        "best_layer": best["layer_tested"],
        "chance": chance,
        "folds": len(folds),
        "test_tokens": folds["tokens"].mean(),
        "test_sentences": folds["sentences"].mean(),
    }
    last = (
        f"Chance: {percent(chance)}. {len(folds)} {'fold' if len(folds) == 1 else 'folds'}, about "
        f"{numbers['test_tokens']:,.0f} test tokens in {numbers['test_sentences']:,.0f} sentences each."
    )
    where = f"at layer {best['layer_tested']}" + (
        f", offset {best['offset']:+d}," if best["offset"] else ""
    )
    headline = (
        (percent(best["rate"]), f"recovered {where} by the best probe ({_name(best)})"),
        (percent(chance), "by guessing a position of the sentence (chance)"),
        (f"{len(folds)}", "folds of 70 / 15 / 15 % of the sentences"),
        (
            f"{folds['tokens'].max():,}",
            f"test tokens per fold, in {folds['sentences'].max():,} sentences",
        ),
    )
    return Finding("\n".join([*_sentences(means, len(folds)), last]), numbers, headline)


def _sentences(means: pl.DataFrame, folds: int) -> Iterator[str]:
    for _, rows in means.group_by("checkpoint", "probe", "distance", maintain_order=True):
        first = rows.row(0, named=True)
        name = _name(first) + (f" ({first['checkpoint']})" if compared(means) else "")
        fewer = f" (on {first['folds']} of {folds} folds)" if first["folds"] < folds else ""
        yield f"{name}{fewer}: {_recovered(rows, first['experiment'])}."


def _recovered(rows: pl.DataFrame, experiment: str) -> str:
    first, last = rows["layer_trained"].min(), rows["layer_trained"].max()

    def rate(**where: Any) -> str:
        return percent(rows.filter(**where)["rate"].mean())

    if experiment == "neighbours":
        sides = [
            f"{rate(offset=offset)} at {offset:+d}" for offset in rows["offset"].unique().sort()
        ]
        return f"neighbours recovered, mean over layers: {', '.join(sides)}"
    if experiment == "data-share":
        shares = [
            f"{rate(share=share)} with {100 * share:.0f} %"
            for share in rows["share"].unique().sort()
        ]
        return f"recovered at layer {last}: {', '.join(shares)} of the training sentences"
    if experiment == "layer-to-layer":
        low, high = percent(rows["rate"].min()), percent(rows["rate"].max())
        return f"from each layer to the one below, {low} to {high} are recovered"
    words = (
        f"{rate(layer_trained=first, layer_tested=first)} of the tokens recovered at layer {first}"
    )
    if last != first:
        words += f", {rate(layer_trained=last, layer_tested=last)} at layer {last}"
    if experiment == "across-layers" and len(rows) > rows["layer_trained"].n_unique():
        low, high = rows["layer_tested"].min(), rows["layer_tested"].max()
        words += f"; trained on {first}, tested on {high}: {rate(layer_trained=first, layer_tested=high)}"
        words += (
            f"; trained on {last}, tested on {low}: {rate(layer_trained=last, layer_tested=low)}"
        )
    return words


def _name(row: dict[str, Any]) -> str:
    return probe_words(row["probe"], row["distance"])
