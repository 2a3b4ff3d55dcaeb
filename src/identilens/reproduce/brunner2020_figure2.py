"""Figures 2, 7 to 11, 14 to 17, 38, 39 and section B.2 of Brunner et al. 2020: token identifiability."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import polars as pl

from identilens.reproduce.brunner2020 import BrunnerSettings, Corpus, Figures, Rows, figures, percent
from identilens.reproduce.record import Recipe
from identilens.runs.settings import LIST
from identilens.studies.tokens.result import TokenIdentifiability
from identilens.studies.tokens.settings import ProbeName, TokenSettings
from identilens.studies.tokens.study import token_identifiability

CHANCE = {"2a": "1.7 %", "38": "9 %", "39": "2.6 %"}
SHARES = {0.5: "74 %", 0.8: "80 %", 0.9: "81 %", 1.0: "82 %"}
"""Rates of an MLP on layer 11 by the share of the training data (B.2, with L2 as in its Figure 7)."""

DROPS = "“drops quickly to below 70% at layers 11 and 12”"
INCREASES = "“almost monotonically increases when testing on earlier layers”"


@dataclass(frozen=True, kw_only=True)
class TokenFigure(BrunnerSettings, TokenSettings):
    """Probes and their training; all numbers are the paper's by default."""

    probes: Annotated[tuple[ProbeName, ...], LIST] = ("naive", "linear", "mlp")


@dataclass(frozen=True, kw_only=True)
class SameLayer(TokenFigure):
    """Probes tested on the layer on which they were trained."""

    experiment: Literal["same-layer"] = "same-layer"


@dataclass(frozen=True, kw_only=True)
class AcrossLayers(TokenFigure):
    """Probes trained on one layer and tested on all."""

    experiment: Literal["across-layers"] = "across-layers"


@dataclass(frozen=True, kw_only=True)
class LayerToLayer(TokenFigure):
    """Probes from a layer to the one before it."""

    experiment: Literal["layer-to-layer"] = "layer-to-layer"


@dataclass(frozen=True, kw_only=True)
class Neighbours(TokenFigure):
    """Probes for tokens at other positions."""

    experiment: Literal["neighbours"] = "neighbours"


@dataclass(frozen=True, kw_only=True)
class DataShare(TokenFigure):
    """Probes trained on a part of the training sentences."""

    experiment: Literal["data-share"] = "data-share"


def rates(means: pl.DataFrame, probe: str, distance: str, **where: object) -> pl.DataFrame:
    """Return the rows of one probe and distance by the layer tested; ``where`` are values of other columns."""
    return means.filter(probe=probe, distance=distance, **where).sort("layer_tested", "layer_trained")


def same_layer(figure: str) -> Callable[[TokenIdentifiability], Rows]:
    """Return the comparison of Figure 2a, 38 or 39."""

    def compare(result: TokenIdentifiability) -> Rows:
        same = result.same_layer()
        last = same["layer_tested"].max()
        rows = [(figure, "chance", CHANCE[figure], percent(same["chance"][0]))]
        for probe, distance in same.select("probe", "distance").unique(maintain_order=True).iter_rows():
            published = "93 % (layer 12)" if (figure, probe, distance) == ("2a", "linear", "cosine") else "curve only"
            cell = rates(same, probe, distance, layer_tested=last)
            rows.append((figure, f"{probe}, {distance}, layer {last}", published, percent(cell["rate"][0])))
        return rows

    return compare


def across_layers(result: TokenIdentifiability) -> Rows:
    """Return the comparison of Figures 2 and 7 to 10."""
    means, rows = result.means(), same_layer("2a")(result)
    first, last = means["layer_trained"].min(), means["layer_trained"].max()
    for trained, tested, published in ((first, last, DROPS), (last, last, "94 %"), (last, first, INCREASES)):
        cell = rates(means, "linear", "cosine", layer_trained=trained, layer_tested=tested)
        if len(cell):
            rows.append(("2b", f"linear, cosine, trained on {trained}, tested on {tested}", published,
                         percent(cell["rate"][0])))  # fmt: skip
    for probe in ("linear", "mlp"):
        cell = rates(result.same_layer(), probe, "l2", layer_tested=last)
        if len(cell):
            rows.append(("7", f"{probe}, L2, training and test, layer {last}", "both overfit to the same degree",
                         f"{percent(cell['train_rate'][0])}, {percent(cell['rate'][0])}"))  # fmt: skip
    return rows


def by_layer(figure: str, words: str, *columns: str) -> Callable[[TokenIdentifiability], Rows]:
    """Return a comparison with a curve of the paper: our rates of every probe at the first and the last layer."""

    def compare(result: TokenIdentifiability) -> Rows:
        means = result.means()
        ends = (means["layer_tested"].min(), means["layer_tested"].max())
        cells = means.filter(pl.col("layer_tested").is_in(ends)).group_by(
            "probe", "distance", "layer_tested", *columns, maintain_order=True
        ).agg(pl.col("rate").first())  # fmt: skip
        return [
            (figure, ", ".join(f"{name.removesuffix('_tested')} {row[name]}" for name in row if name != "rate"), words,
             percent(row["rate"]))
            for row in cells.iter_rows(named=True)
        ]  # fmt: skip

    return compare


def data_share(result: TokenIdentifiability) -> Rows:
    """Return the comparison of section B.2."""
    cells = result.means().filter(probe="mlp").sort("distance", "share")
    return [
        ("B.2", f"MLP, {row['distance']}, layer {row['layer_tested']}, {row['share']:.0%} of the sentences",
         f"{SHARES[row['share']]} (layer 11)" if row["distance"] == "l2" and row["share"] in SHARES else "not given",
         percent(row["rate"]))
        for row in cells.iter_rows(named=True)
    ]  # fmt: skip


def tables(result: TokenIdentifiability) -> Mapping[str, pl.DataFrame]:
    """Return the means over folds."""
    return {"means": result.means()}


def recipe(
    settings: type[TokenFigure], name: str, source: str, corpus: Corpus,
    compare: Callable[[TokenIdentifiability], Rows], *charts: str, most: int | None = None,
) -> Recipe:  # fmt: skip
    """Return the recipe of figures of token identifiability."""
    one = Figures(name, source, corpus, compare, charts, tables, most)
    return figures(token_identifiability, TokenSettings, settings, one)


FIGURE2 = recipe(
    AcrossLayers, "brunner2020-figure2", "Figures 2 and 7 to 10", "mrpc", across_layers,
    "rate_by_layer", "train_and_test", "across_layers",
)  # fmt: skip
FIGURE11 = recipe(
    LayerToLayer, "brunner2020-figure11", "Figure 11", "mrpc",
    by_layer("11", "falls in later layers, L2 below cosine"), "rate_by_layer",
)  # fmt: skip
FIGURE14 = recipe(
    Neighbours, "brunner2020-figure14", "Figures 14 to 17", "mrpc",
    by_layer("14 to 17", "falls with distance and depth", "offset"), "neighbours",
)  # fmt: skip
B2 = recipe(DataShare, "brunner2020-b2", "section B.2", "mrpc", data_share, "rate_by_share")
FIGURE38 = recipe(SameLayer, "brunner2020-figure38", "Figure 38 (CoLA)", "cola", same_layer("38"), "rate_by_layer")
FIGURE39 = recipe(
    SameLayer, "brunner2020-figure39", "Figure 39 (MNLI)", "mnli", same_layer("39"), "rate_by_layer", most=500
)
