"""Figures 3, 4, 18 to 37 and 40 to 43 of Brunner et al. 2020: Hidden Token Attribution on four corpora."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from identilens.reproduce.brunner2020 import BrunnerSettings, Corpus, Figures, Rows, figures, percent
from identilens.reproduce.record import Recipe
from identilens.studies.mixing.result import Mixing
from identilens.studies.mixing.study import MixingSettings, mixing

OWN = {"first": ("30.6 %", "0"), "middle": ("14.4 %", "18 %"), "last": ("10.7 %", "30 %")}
"""Median own contribution on MRPC, and share of tokens that are not their own largest contributor, by layer."""

SPEECH = {"[CLS]": "over 40 %", "NN": "less than 35 %", "DT": "less than 35 %"}
"""Median own contribution of some parts of speech in the first layer (Fig. 26)."""

TREEBANK = (
    "Figures 26 to 37 are measured here on single sentences of UD English EWT; the paper's section C.5 names no corpus."
)


@dataclass(frozen=True, kw_only=True)
class Figure3Settings(BrunnerSettings, MixingSettings):
    """The norms of derivatives, and the texts."""


def mrpc(result: Mixing) -> Rows:
    """Return own contributions beside the paper's, and where neighbours contribute most."""
    rows = []
    for (name, (median, share)), row in zip(OWN.items(), _ends(result.by_layer()), strict=True):
        place = f"layer {row['layer']} ({name})"
        rows.append(("3a", f"median own contribution, {place}", median, percent(row["median_own"])))
        rows.append(("3b", f"not their own largest contributor, {place}", share, percent(row["not_largest"])))
    return rows + neighbours(result, "4a")


def neighbours(result: Mixing, figure: str) -> Rows:
    """Return the layer in which the closest and the farthest neighbours contribute most."""
    frame = result.series.neighbours
    if frame.is_empty():
        return []
    groups = frame["group"].unique(maintain_order=True)
    expected = {groups[0]: "the first layers", groups[-1]: "deep layers"}
    peaks = {name: frame.filter(group=name).sort("share").row(-1, named=True) for name in expected}
    return [
        (figure, f"layer with most of group {name}", expected[name], f"{row['layer']} ({percent(row['share'])})")
        for name, row in peaks.items()
    ]


def other(first: str, second: str) -> Callable[[Mixing], Rows]:
    """Return the comparison for another corpus: the paper gives curves only."""

    def compare(result: Mixing) -> Rows:
        rows = [
            (first, f"median own contribution and not largest, layer {row['layer']}", "curve only",
             f"{percent(row['median_own'])}, {percent(row['not_largest'])}")
            for row in _ends(result.by_layer())
        ]  # fmt: skip
        return rows + neighbours(result, second)

    return compare


def speech(result: Mixing) -> Rows:
    """Return median own contributions of parts of speech in the first and the last layer."""
    frame = result.series.speech
    first, last = frame["layer"].min(), frame["layer"].max()
    medians = {(row["layer"], row["tag"]): row["median"] for row in frame.iter_rows(named=True)}
    rows = [
        ("26", f"median own contribution of {tag}, layer {first}", published,
         percent(medians.get((first, tag))) or "no such token")
        for tag, published in SPEECH.items()
    ]  # fmt: skip
    noun, determiner = medians.get((last, "NN")), medians.get((last, "DT"))
    difference = "no such tokens"
    if noun is not None and determiner is not None:
        difference = f"{100 * (noun - determiner):+.1f} points ({percent(noun)} − {percent(determiner)})"
    return [*rows, ("37", f"median own contribution, NN − DT, layer {last}", "nouns above determiners", difference)]


def tables(result: Mixing) -> Mapping[str, pl.DataFrame]:
    """Return the tables behind the figures."""
    series = result.series
    parts = {f"class_token_{number}": one.frame for number, one in enumerate(series.class_context)}
    named = {"own_by_layer": series.own, "neighbours": series.neighbours, "positions": series.positions, **parts}
    return {name: frame for name, frame in {**named, "part_of_speech": series.speech}.items() if len(frame)}


def _ends(layers: pl.DataFrame) -> list[dict[str, Any]]:
    layers = layers.sort("layer")
    return [layers.row(index, named=True) for index in (0, (len(layers) - 1) // 2, -1)]


def recipe(
    name: str, source: str, corpus: Corpus, compare: Callable[[Mixing], Rows], *charts: str, most: int | None = None,
    note: str = "",
) -> Recipe:  # fmt: skip
    """Return the recipe of figures of Hidden Token Attribution."""
    one = Figures(name, source, corpus, compare, charts, tables, most, note)
    return figures(mixing, MixingSettings, Figure3Settings, one)


CHARTS = ("own_contribution", "not_largest", "neighbours", "relative_positions")
FIGURE3 = recipe(
    "brunner2020-figure3", "Figures 3, 4 and 18 to 25", "mrpc", mrpc, *CHARTS, "class_token", "tracked_token"
)
FIGURE26 = recipe("brunner2020-figure26", "Figures 26 to 37", "ewt", speech, "part_of_speech", note=TREEBANK)
FIGURE40 = recipe("brunner2020-figure40", "Figures 40 and 41 (CoLA)", "cola", other("40", "41"), *CHARTS)
FIGURE42 = recipe("brunner2020-figure42", "Figures 42 and 43 (MNLI)", "mnli", other("42", "43"), *CHARTS, most=4000)
