"""How rates are drawn: Brunner et al. 2020, Fig. 2, 7 to 17, 38, 39."""

from collections.abc import Iterator

import polars as pl

from identilens.charts.cells import heat
from identilens.charts.kit import AnyChart, Charts, choose, lines, rule

_PROBES = {"naive": "Naive look-up", "linear": "Linear probe", "mlp": "MLP", "ridge": "Ridge probe"}
_DISTANCES = {"cosine": "cosine", "l2": "L2"}
_ERROR = "standard error"
_SHARES = (
    ("rate", "chance", ", by layer"),
    ("token_rate", "token_chance", ", any of its positions"),
)


def charts(means: pl.DataFrame) -> Charts:
    """Return the charts of an experiment by name, from its means over folds, a row per cell."""
    experiment = means["experiment"][0]
    rows = means.rename({"rate_error": _ERROR}).with_columns(
        pl.col("checkpoint").cast(pl.String),
        curve=pl.Series(
            [probe_words(*pair) for pair in means.select("probe", "distance").iter_rows()]
        ),
        percent=100 * pl.col("share"),
    )
    if experiment == "data-share":
        layers = rows["layer_trained"].unique().sort()
        return {
            f"rate_by_share_layer{layer}": _by_share(rows.filter(layer_trained=layer), layer)
            for layer in layers
        }
    if experiment == "neighbours":
        return {f"neighbours_{key}": _neighbours(of_probe) for key, of_probe in _by_probe(rows)}
    charts = _by_layer(rows)
    if experiment == "across-layers":
        for key, of_probe in _by_probe(rows.filter(pl.col("probe") != "naive")):
            # Brunner et al. 2020, Fig. 2b, 8 to 10.
            title = f"{of_probe['curve'][0]}: trained on one layer, tested on all"
            charts[f"across_layers_{key}"] = _by_checkpoint(
                _rates(
                    of_probe,
                    "layer_tested",
                    "layer_trained",
                    title=title,
                    x_title="Layer tested on",
                    color_title="Layer trained on",
                ),
                of_probe,
            )
            charts[f"across_layers_map_{key}"] = _by_checkpoint(
                heat(
                    of_probe.select("layer_tested", "layer_trained", "rate", _ERROR, "checkpoint"),
                    "layer_tested",
                    "layer_trained",
                    "rate",
                    domain=(0, 1),
                    also=(_ERROR,),
                    title=f"{of_probe['curve'][0]}: share recovered by pair of layers",
                    x_title="Layer tested on",
                    y_title="Layer trained on",
                    color_title="Share recovered",
                ),
                of_probe,
            )
    return charts | _train_and_test(rows)


def same_layer(means: pl.DataFrame) -> pl.DataFrame:
    """Return the cells that are tested on the layer they were trained on."""
    return means.filter(pl.col("layer_trained") == pl.col("layer_tested"))


def compared(means: pl.DataFrame) -> bool:
    """Return whether there are two checkpoints."""
    return means["checkpoint"].n_unique() > 1


def probe_words(probe: str, distance: str) -> str:
    """Return probe and distance in words, such as "Linear probe, cosine"."""
    return f"{_PROBES[probe]}, {_DISTANCES[distance]}"


def _by_layer(rows: pl.DataFrame) -> Charts:
    """Return the rates by layer: Fig. 2a, 11 to 13, 38 and 39, and the same where position does not count."""
    same = same_layer(rows)
    title = (
        "State of the layer below recovered"
        if rows["experiment"][0] == "layer-to-layer"
        else "Token recovered"
    )
    dash = "checkpoint" if compared(rows) else None
    return {
        f"{measure}_by_layer": _rates(
            same,
            "layer_tested",
            "curve",
            dash,
            measure=measure,
            chance=chance,
            title=title + more,
            x_title="Layer",
        )
        for measure, chance, more in _SHARES
    }


def _neighbours(rows: pl.DataFrame) -> AnyChart:
    """Return how one probe recovers neighbours, left and right in two colours (Fig. 14 to 17)."""
    right, steps = pl.col("offset") > 0, pl.col("offset").abs()
    sides = rows.with_columns(
        side=pl.when(right).then(pl.lit("to the right")).otherwise(pl.lit("to the left")),
        distance=pl.format("{} away", steps),
    ).sort(right, steps, "layer_tested")
    return _by_checkpoint(
        _rates(
            sides,
            "layer_tested",
            "side",
            "distance",
            title=f"{rows['curve'][0]}: neighbours recovered, by layer",
            x_title="Layer",
        ),
        rows,
    )


def _by_share(rows: pl.DataFrame, layer: int) -> AnyChart:
    return _rates(
        rows,
        "percent",
        "curve",
        "checkpoint" if compared(rows) else None,
        title=f"Layer {layer}: tokens recovered, by share of the training sentences",
        x_title="Training sentences used (%)",
    )


def _train_and_test(rows: pl.DataFrame) -> Charts:
    """Return the rates on test and on training sentences, one chart a distance (Fig. 7)."""
    same = same_layer(rows).filter(pl.col("train_rate").is_not_null())
    if same["layer_tested"].n_unique() < 2:
        return {}
    training = same.with_columns(
        rate="train_rate", sentences=pl.lit("training"), **{_ERROR: pl.lit(None, pl.Float64)}
    )
    both = pl.concat([same.with_columns(sentences=pl.lit("test")), training])
    return {
        f"train_and_test_{distance}": _by_checkpoint(
            _rates(
                both.filter(distance=distance),
                "layer_tested",
                "curve",
                "sentences",
                title=f"Training and test sentences, {_DISTANCES[distance]}",
                x_title="Layer",
            ),
            rows,
        )
        for distance in both["distance"].unique(maintain_order=True)
    }


def _rates(
    rows: pl.DataFrame,
    x: str,
    color: str,
    dash: str | None = None,
    *,
    measure: str = "rate",
    chance: str = "chance",
    title: str,
    x_title: str,
    color_title: str = "",
) -> AnyChart:
    # Errors were taken of the rate itself; other measures are shown without.
    known = measure == "rate" and rows[_ERROR].null_count() < len(rows)
    error = _ERROR if known else None
    columns = [
        x,
        measure,
        color,
        *([dash] if dash else []),
        *([error] if error else []),
        "folds",
        "checkpoint",
    ]
    chart = lines(
        rows.select(*dict.fromkeys(columns)),
        x,
        measure,
        color,
        dash=dash,
        error=error,
        title=title,
        x_title=x_title,
        y_title="Share recovered",
        color_title=color_title,
        y_domain=(0, 1),
        y_format=".0~%",
        also=[error, "folds"] if error else ["folds"],
    )
    guess = rows[chance].mean()
    return rule(chart, y=guess, label="chance") if isinstance(guess, float) else chart


def _by_checkpoint(chart: AnyChart, rows: pl.DataFrame) -> AnyChart:
    return (
        choose(chart, "checkpoint", "Checkpoint", ["model", "compared"])
        if compared(rows)
        else chart
    )


def _by_probe(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    for (probe, distance), of_probe in rows.group_by("probe", "distance", maintain_order=True):
        yield f"{probe}_{distance}", of_probe
