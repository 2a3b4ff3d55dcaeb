"""What the figures of a token identifiability analysis show: the HTML report and the paper figures share it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from identilens.results.tokens import DISTANCE_NAMES, PROBE_NAMES, TokenIdentifiability

Row = dict[str, object]


@dataclass(frozen=True)
class Curve:
    """One line of a chart.

    Attributes:
        label: Its name in the legend.
        x: Layers, or shares in per cent.
        y: Rates in [0, 1], means over folds.
        errors: Standard errors over folds; None for one fold.
        tone: Number of its colour.
        shade: Place on the scale of colours in [0, 1] in place of a tone, for curves that are ordered.
        dashed: Drawn with dashes.
        mark: Number of its marker.
    """

    label: str
    x: list[float]
    y: list[float]
    errors: list[float | None]
    tone: int = 0
    shade: float | None = None
    dashed: bool = False
    mark: int = 0


@dataclass(frozen=True)
class Chart:
    """Rates by layer or by share of the training data.

    Attributes:
        name: Of the file and of the element.
        group: Section it belongs to: rates, train, across, neighbours or shares.
        title: What it shows.
        x_label: What the x axis is.
        curves: The lines.
        chance: Rate of a random guess.
    """

    name: str
    group: str
    title: str
    x_label: str
    curves: list[Curve]
    chance: float | None


def charts(result: TokenIdentifiability) -> list[Chart]:
    """Return the charts of a result, in the order in which they are read."""
    means = result.means()
    own = {"neighbours": _neighbours, "data-share": _shares, "across-layers": _across}.get(result.experiment)
    found = [] if result.experiment in ("neighbours", "data-share") else list(_by_layer(result))
    found += list(own(means)) if own else []
    return [*found, *_train_and_test(result)]


def probe_name(row: Row) -> str:
    """Return probe and distance in words, such as "Linear probe, cosine".

    Args:
        row: Row of the means.
    """
    name = f"{PROBE_NAMES[str(row['probe'])]}, {DISTANCE_NAMES[str(row['distance'])]}"
    return name[0].upper() + name[1:]


def _by_layer(result: TokenIdentifiability) -> Iterator[Chart]:
    """Yield the rates by layer: Fig. 2a, 11 to 13, 38 and 39, and the same where position does not count."""
    rows = result.same_layer()
    title = "State of the layer below recovered" if result.experiment == "layer-to-layer" else "Token recovered"
    for measure, name, more in (
        ("rate", "rate_by_layer", ", by layer"),
        ("token_rate", "token_rate_by_layer", ", any of its positions"),
    ):
        chance = rows["chance" if measure == "rate" else "token_chance"].mean()
        yield Chart(name, "rates", title + more, "Layer", list(_curves(rows, "layer_tested", measure)), _number(chance))


def _across(means: pl.DataFrame) -> Iterator[Chart]:
    """Yield one chart a probe, trained on one layer and tested on all: Fig. 2b, 8 to 10."""
    for key, rows in _by_probe(means):
        if rows["probe"][0] == "naive":
            continue
        trained = sorted(rows["layer_trained"].unique())
        curves = []
        for place, layer in enumerate(trained):
            own = rows.filter(pl.col("layer_trained") == layer).sort("layer_tested")
            shade = place / max(1, len(trained) - 1)
            curves.append(_curve(own, "layer_tested", "rate", f"trained on layer {layer}", shade=shade, mark=place))
        title = f"{probe_name(rows.row(0, named=True))}: trained on one layer, tested on all"
        yield Chart(f"across_layers_{key}", "across", title, "Layer tested on", curves, _number(rows["chance"].mean()))


def _neighbours(means: pl.DataFrame) -> Iterator[Chart]:
    """Yield one chart a probe: neighbours to the left blue, to the right red (Fig. 14 to 17)."""
    for key, rows in _by_probe(means):
        curves = []
        for offset in sorted(rows["offset"].unique(), key=lambda offset: (offset > 0, abs(offset))):
            own = rows.filter(pl.col("offset") == offset).sort("layer_tested")
            side, steps = ("left" if offset < 0 else "right"), abs(offset)
            curves.append(
                _curve(
                    own,
                    "layer_tested",
                    "rate",
                    f"{steps} to the {side}",
                    tone=int(offset > 0),
                    mark=steps - 1,
                    dashed=steps > 1,
                )
            )
        title = f"{probe_name(rows.row(0, named=True))}: neighbours recovered, by layer"
        yield Chart(f"neighbours_{key}", "neighbours", title, "Layer", curves, _number(rows["chance"].mean()))


def _shares(means: pl.DataFrame) -> Iterator[Chart]:
    """Yield the rate by share of the training sentences, one chart a layer (B.2)."""
    rows = means.with_columns(percent=100 * pl.col("share"))
    for layer in sorted(rows["layer_trained"].unique()):
        own = rows.filter(pl.col("layer_trained") == layer)
        title = f"Layer {layer}: tokens recovered, by share of the training sentences"
        curves = list(_curves(own, "percent", "rate"))
        chance = _number(own["chance"].mean())
        yield Chart(f"rate_by_share_layer{layer}", "shares", title, "Training sentences used (%)", curves, chance)


def _train_and_test(result: TokenIdentifiability) -> Iterator[Chart]:
    """Yield the rates on test and on training sentences, one chart a distance (Fig. 7)."""
    rows = result.same_layer().filter(pl.col("train_rate").is_not_null(), pl.col("offset") == 0)
    if result.experiment == "data-share" or rows["layer_tested"].n_unique() < 2:
        return
    for distance in rows["distance"].unique(maintain_order=True):
        own = rows.filter(pl.col("distance") == distance)
        curves = [
            *_curves(own, "layer_tested", "rate", ending=", test"),
            *_curves(own, "layer_tested", "train_rate", ending=", training", dashed=True),
        ]
        title = f"Training and test sentences, {DISTANCE_NAMES[distance]}"
        yield Chart(f"train_and_test_{distance}", "train", title, "Layer", curves, _number(own["chance"].mean()))


def _curves(rows: pl.DataFrame, x: str, measure: str, ending: str = "", dashed: bool = False) -> Iterator[Curve]:
    """Yield one curve a probe, distance and checkpoint; the checkpoint before fine-tuning is dashed."""
    compared = rows["checkpoint"].n_unique() > 1
    names = [key for key, _ in _by_probe(rows)]
    for key, own in _by_probe(rows):
        tone = names.index(key)
        for checkpoint in own["checkpoint"].unique(maintain_order=True):
            label = probe_name(own.row(0, named=True)) + ending + (f" ({checkpoint})" if compared else "")
            chosen = own.filter(pl.col("checkpoint") == checkpoint).sort(x)
            first = compared and checkpoint == "model"
            yield _curve(chosen, x, measure, label, tone=tone, mark=tone, dashed=dashed or first)


def _curve(
    rows: pl.DataFrame,
    x: str,
    measure: str,
    label: str,
    *,
    tone: int = 0,
    shade: float | None = None,
    mark: int = 0,
    dashed: bool = False,
) -> Curve:
    # Errors were taken of the rate itself; other measures are shown without.
    errors: list[float | None] = rows["rate_error"].to_list() if measure == "rate" else [None for _ in range(len(rows))]
    xs: Sequence[float] = rows[x].cast(pl.Float64).to_list()
    return Curve(label, list(xs), rows[measure].to_list(), errors, tone, shade, dashed, mark)


def _by_probe(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    for (probe, distance), own in rows.group_by("probe", "distance", maintain_order=True):
        yield f"{probe}_{distance}", own


def _number(value: object) -> float | None:
    return value if isinstance(value, float) else None
